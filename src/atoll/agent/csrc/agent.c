/* PID 1 of the sandbox: the loop over requests, answers, children and time. */
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "entry.h"

extern char **environ;

enum { EVENTS_PER_ROUND = 64, EXIT_FATAL = 70 };

void agent_log(const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    int len = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (len > 0) dprintf(2, "atoll-agent: %s\n", text);
}

static void fatal(const char *what) {
    agent_log("%s: %s", what, strerror(errno));
    exit(EXIT_FATAL);
}

static void epoll_do(struct agent *a, int operation, struct source *s, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = s};
    if (epoll_ctl(a->epoll, operation, s->fd, &event) < 0) fatal("epoll_ctl");
}

void source_add(struct agent *a, struct source *s, uint32_t events) { epoll_do(a, EPOLL_CTL_ADD, s, events); }

void source_change(struct agent *a, struct source *s, uint32_t events) { epoll_do(a, EPOLL_CTL_MOD, s, events); }

void source_close(struct source *s) {
    if (s->fd >= 0) close(s->fd); /* no other descriptor of it is left, so epoll forgets it by itself */
    s->fd = -1;
}

/* Kills everything and ends. Outside a namespace of its own (tests) only what descends from the agent. */
static void shut_down(struct agent *a, int status) {
    connection_send(a);
    if (getpid() == 1) kill(-1, SIGKILL);
    struct snapshot s = {0};
    for (int round = 0; round < 100; round++) {
        snapshot_take(&s);
        if (s.count == 0) break;
        for (size_t i = 0; i < s.count; i++) kill(s.list[i].pid, SIGKILL);
        while (waitpid(-1, NULL, WNOHANG) > 0) continue;
        usleep(1000);
    }
    snapshot_free(&s);
    agent_free(a);
    exit(status);
}

static void take_child(struct agent *a, pid_t pid, int wait_status) {
    if (a->entrypoint && pid == a->entrypoint->pid)
        shut_down(a, WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status));
    if (stream_reaped(a, pid, wait_status)) return;
    for (struct command *c = a->running.first; c; c = c->next) {
        if (c->tree.root != pid) continue;
        command_reaped(a, c, wait_status);
        return;
    }
}

static void take_signals(struct agent *a) {
    struct signalfd_siginfo info[8];
    ssize_t got = read(a->signals.fd, info, sizeof info); /* once: epoll tells of more */
    for (ssize_t i = 0; i < got / (ssize_t)sizeof info[0]; i++)
        if (info[i].ssi_signo == SIGTERM) shut_down(a, 128 + SIGTERM);
    int wait_status;
    for (pid_t pid; (pid = waitpid(-1, &wait_status, WNOHANG)) > 0;) take_child(a, pid, wait_status);
}

static void take_event(struct agent *a, const struct epoll_event *event) {
    struct source *s = event->data.ptr;
    if (s->fd < 0) return; /* closed earlier in this round */
    bool hung_up = event->events & (EPOLLHUP | EPOLLERR);
    switch (s->kind) {
    case SOURCE_REQUESTS:
        if (!connection_receive(a, hung_up)) shut_down(a, 0);
        break;
    case SOURCE_ANSWERS:
        if (hung_up) shut_down(a, 0);
        break; /* connection_send comes at the end of every round */
    case SOURCE_SIGNALS:
        take_signals(a);
        break;
    case SOURCE_STDIN:
        input_write(a, s->command, monotonic_ms());
        break;
    case SOURCE_STDOUT:
    case SOURCE_STDERR:
        command_output(a, s->command, s);
        break;
    case SOURCE_STREAM:
        stream_event(a, s, event->events);
    }
}

static void tick(struct agent *a, uint64_t now) {
    for (struct command *c = a->running.first, *next; c; c = next) {
        next = c->next;
        command_tick(a, c, now);
    }
    entry_tick(a, now);
    streams_tick(a, now);
    hold_tick(a, now);
}

static int next_wait(const struct agent *a, uint64_t now) {
    if (a->waiters_due && queue_len(&a->out) < OUT_HIGH_WATER) return 0;
    uint64_t next = waiters_next(a), stream_at = streams_next(a), hold_at = hold_next(a);
    if (stream_at < next) next = stream_at;
    if (hold_at < next) next = hold_at;
    if (a->settle_look_at < next) next = a->settle_look_at;
    for (const struct command *c = a->running.first; c; c = c->next) {
        uint64_t tick_at = command_next_tick(c);
        if (tick_at < next) next = tick_at;
    }
    if (next <= now) return 0;
    return next == NEVER ? -1 : next - now > 3600000 ? 3600000 : (int)(next - now);
}

static void serve(struct agent *a) {
    struct epoll_event events[EVENTS_PER_ROUND];
    for (;;) {
        uint64_t now = monotonic_ms();
        tick(a, now);
        waiters_answer(a, now);
        if (!connection_send(a)) shut_down(a, 0);
        commands_bury(a);
        int ready = epoll_wait(a->epoll, events, EVENTS_PER_ROUND, next_wait(a, monotonic_ms()));
        if (ready < 0 && errno != EINTR) fatal("epoll_wait");
        for (int i = 0; i < ready; i++) take_event(a, &events[i]);
    }
}

static bool is_inherited(const char *entry) {
    return strncmp(entry, "SANDBOX_AGENT_", 14) != 0 && strncmp(entry, "ATOLL_", 6) != 0;
}

/* Copies what commands inherit, and wipes where it came from: gVisor lets every uid read /proc/1/environ. */
static char **take_environment(void) {
    size_t count = 1, chars = 0;
    for (char **entry = environ; *entry; entry++, count++) chars += strlen(*entry) + 1;
    char **kept = must_alloc(count * sizeof *kept + chars), **next = kept;
    char *text = (char *)(kept + count);
    for (char **entry = environ; *entry; entry++) {
        size_t len = strlen(*entry) + 1;
        if (is_inherited(*entry)) {
            *next++ = memcpy(text, *entry, len);
            text += len;
        }
        memset(*entry, 0, len);
    }
    static char *none[] = {NULL};
    environ = none;
    return kept;
}

static void open_sources(struct agent *a) {
    a->null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (a->null_fd >= 0 && a->null_fd < 3) a->null_fd = fcntl(a->null_fd, F_DUPFD_CLOEXEC, 3);
    a->epoll = epoll_create1(EPOLL_CLOEXEC);
    sigset_t all, wanted;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    sigaddset(&wanted, SIGTERM);
    a->signals = (struct source){SOURCE_SIGNALS, signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK), {NULL}};
    a->requests = (struct source){SOURCE_REQUESTS, 0, {NULL}};
    a->answers = (struct source){SOURCE_ANSWERS, 1, {NULL}};
    if (a->null_fd < 0 || a->epoll < 0 || a->signals.fd < 0) fatal("descriptors");
    if (fcntl(0, F_SETFL, O_NONBLOCK) < 0 || fcntl(1, F_SETFL, O_NONBLOCK) < 0) fatal("the connection");
    source_add(a, &a->signals, EPOLLIN);
    source_add(a, &a->requests, EPOLLIN);
    source_add(a, &a->answers, 0);
    a->requests_armed = true;
}

static uint64_t number(const char *text) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || end == text || *text == '-') {
        agent_log("not a number: %s", text);
        exit(2);
    }
    return value;
}

static char **parse(struct agent *a, int argc, char **argv) {
    static const struct option options[] = {{"uid", 1, NULL, 'u'},     {"gid", 1, NULL, 'g'},
                                            {"nproc", 1, NULL, 'n'},   {"workdir", 1, NULL, 'w'},
                                            {"cgroup-limit", 1, NULL, 'm'}, {NULL, 0, NULL, 0}};
    a->identity = (struct identity){1001, 1001, 0, "/"};
    for (int option; (option = getopt_long(argc, argv, "+", options, NULL)) != -1;) {
        switch (option) {
        case 'u': a->identity.uid = (uid_t)number(optarg); break;
        case 'g': a->identity.gid = (gid_t)number(optarg); break;
        case 'n': a->identity.nproc = number(optarg); break;
        case 'w': a->identity.workdir = optarg; break;
        case 'm': a->memory_limit = number(optarg); break;
        default: exit(2);
        }
    }
    return argv + optind;
}

/* The default directory of commands, made where the image lacks it, as container engines do. What cannot be made fails the
 * commands that go there, with a sentence. */
static void make_workdir(const struct identity *identity) {
    char path[PATH_MAX];
    size_t len = strlen(identity->workdir);
    if (len == 0 || len >= sizeof path || access(identity->workdir, F_OK) == 0) return;
    memcpy(path, identity->workdir, len + 1);
    for (char *end = path + 1;; end++) {
        if (*end != '/' && *end != 0) continue;
        char was = *end;
        *end = 0;
        if (mkdir(path, 0755) == 0 && lchown(path, identity->uid, identity->gid) < 0) return;
        *end = was;
        if (was == 0) return;
    }
}

/* Workers run this very file, also when another one took its name meanwhile. */
static const char *open_program(void) {
    static char path[32];
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (fd < 0) fatal("/proc/self/exe");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

int agent_main(int argc, char **argv) {
    static struct agent agent;
    struct agent *a = &agent;
    char **entrypoint = parse(a, argc, argv);
    if (close_range(3, ~0U, 0) < 0)
        for (int fd = 3; fd < 1024; fd++) close(fd);
    while (fcntl(2, F_GETFD) < 0 && open("/dev/null", O_RDWR) >= 0) continue;
    a->began_at = monotonic_ms();
    a->hold_until = a->hold_look_at = NEVER;
    a->last_tag = TREE_TAG_BASE + ((uint64_t)getpid() << 32);
    a->environment = take_environment();
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); /* PID 1 is that anyway; tests run the agent without a namespace */
    a->program = open_program();
    open_sources(a);
    make_workdir(&a->identity);
    const char *failed = spawn_prepare(&a->identity);
    if (failed) fatal(failed);
    if (!entry_start(a, entrypoint)) fatal("the entrypoint");
    serve(a);
    return 0;
}
