#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"

enum { MAX_CGROUPS = 32, READY_LIMIT_MS = 40000, SOCKET_BYTES = 1024 * 1024 };

struct shim {
    const char *path;
    int directory, signals;
    struct sandbox sandbox;
    struct memory_watch memory;
    struct relay relay;
    struct calm calm;
    bool killing, killed;
    uint64_t kill_at;
};

static int fail(const char *what) {
    dprintf(2, "atoll-agent shim: %s\n", what);
    return 1;
}

static bool parse_number(const char *text, uint64_t *value) {
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && *end == 0 && end != text && *text != '-';
}

static bool add_path(const char **list, const char *path) {
    size_t count = 0;
    while (list[count]) count++;
    if (count == MAX_CGROUPS) return false;
    list[count] = path;
    return true;
}

static bool parse_option(struct shim *s, int option, const char *value) {
    switch (option) {
    case 'd': s->path = value; return true;
    case 'n': s->sandbox.hide_proc_sys_net = true; return true;
    case 'M': s->sandbox.meminfo = value; return true;
    case 'j': return add_path(s->sandbox.joins, value);
    case 'k': return add_path(s->sandbox.kill_cgroups, value);
    case 'i': s->calm.cgroup = value; return true;
    case 'm':
        s->memory.version = strcmp(value, "v1") == 0 ? 1 : strcmp(value, "v2") == 0 ? 2 : 0;
        return s->memory.version != 0;
    case 'c': s->memory.cgroup = value; return true;
    case 'l': return parse_number(value, &s->memory.limit);
    case 'r': return parse_number(value, &s->memory.reserve);
    default: return false;
    }
}

static bool parse(struct shim *s, int argc, char **argv) {
    static const char *joins[MAX_CGROUPS + 1], *kills[MAX_CGROUPS + 1];
    static const struct option options[] = {{"dir", 1, NULL, 'd'},           {"hide-proc-sys-net", 0, NULL, 'n'},
                                            {"join", 1, NULL, 'j'},          {"kill-cgroup", 1, NULL, 'k'},
                                            {"memory", 1, NULL, 'm'},        {"memory-cgroup", 1, NULL, 'c'},
                                            {"memory-limit", 1, NULL, 'l'},  {"memory-reserve", 1, NULL, 'r'},
                                            {"calm-idle", 1, NULL, 'i'},       {"meminfo", 1, NULL, 'M'},
                                            {NULL, 0, NULL, 0}};
    s->sandbox.joins = joins;
    s->sandbox.kill_cgroups = kills;
    for (int option; (option = getopt_long(argc, argv, "+", options, NULL)) != -1;)
        if (!parse_option(s, option, optarg)) return false;
    s->sandbox.argv = argv + optind;
    return s->path && s->sandbox.argv[0] && (s->memory.version == 0 || (s->memory.cgroup && s->memory.limit));
}

/* Bound by its short name: the path of a socket is at most 107 bytes long, DIR may be longer. */
static int listen_in(int directory) {
    if (fchdir(directory) < 0) return -1;
    unlink("agent.sock");
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "agent.sock"};
    mode_t before = umask(0177);
    bool bound = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    umask(before);
    if (chdir("/") < 0 || !bound || listen(fd, 128) < 0) return -1;
    return fd;
}

/* One end for the sandbox, one for the shim. */
static bool open_connection(int ends[2]) {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) return false;
    int bytes = SOCKET_BYTES;
    for (int i = 0; i < 2; i++)
        if (setsockopt(ends[i], SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) < 0)
            setsockopt(ends[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    return fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0;
}

static bool open_signals(struct shim *s) {
    sigset_t wanted;
    sigfillset(&wanted);
    sigprocmask(SIG_SETMASK, &wanted, NULL);
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    sigaddset(&wanted, SIGTERM);
    s->signals = signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signals >= 0;
}

static const char *set_up(struct shim *s) {
    const char *failed = NULL;
    int ends[2];
    char pid[24];
    snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0) return "PR_SET_CHILD_SUBREAPER";
    if (!write_file(s->directory, "shim.pid", pid)) return "shim.pid cannot be written";
    unlinkat(s->directory, "exit", 0);
    if (!open_signals(s) || !open_connection(ends)) return "no descriptors";
    int listener = listen_in(s->directory);
    if (listener < 0) return "agent.sock cannot be made";
    if (!sandbox_start(&s->sandbox, s->directory, ends[1], &failed)) return failed;
    /* After the start: it waits for the kernel for ten milliseconds, in which the sandbox boots. */
    if (!memory_watch_open(&s->memory, &failed)) return failed;
    relay_init(&s->relay, listener, ends[0]);
    return NULL;
}

static void take_signals(struct shim *s) {
    struct signalfd_siginfo info;
    while (read(s->signals, &info, sizeof info) == sizeof info)
        if (info.ssi_signo == SIGTERM) s->killing = true;
    sandbox_reap(&s->sandbox);
}

static void step_kill(struct shim *s, uint64_t now) {
    if (s->relay.kill_asked) s->killing = true;
    if (s->sandbox.pid > 0 && !s->killing) return;
    if (now < s->kill_at) return;
    s->killed = s->killed || s->killing;
    s->kill_at = sandbox_kill_round(&s->sandbox) ? now + KILL_LOOK_MS : NO_TIME;
}

static bool is_over(const struct shim *s) { return s->sandbox.pid == 0 && s->kill_at == NO_TIME; }

static int next_wait(const struct shim *s, uint64_t now) {
    uint64_t next = s->memory.look_at < s->calm.look_at ? s->memory.look_at : s->calm.look_at;
    bool kills = s->killing || s->relay.kill_asked || s->sandbox.pid == 0;
    if (kills && s->kill_at < next) next = s->kill_at;
    if (next == NO_TIME) return -1;
    return next <= now ? 0 : (int)(next - now);
}

static void serve(struct shim *s) {
    struct pollfd fds[6];
    calm_init(&s->calm, monotonic_ms());
    while (!is_over(s)) {
        fds[0] = (struct pollfd){.fd = s->signals, .events = POLLIN};
        relay_poll(&s->relay, fds + 1);
        memory_watch_poll(&s->memory, fds + 4);
        if (poll(fds, 6, next_wait(s, monotonic_ms())) < 0)
            for (int i = 0; i < 6; i++) fds[i].revents = 0;
        uint64_t now = monotonic_ms();
        if (memory_watch_run(&s->memory, fds + 4, now)) relay_send_oom(&s->relay);
        if (fds[2].revents) calm_wake(&s->calm, now);
        calm_run(&s->calm, now);
        relay_run(&s->relay, fds + 1);
        if (fds[0].revents) take_signals(s);
        step_kill(s, now);
    }
}

static void write_exit(const struct shim *s) {
    int status = s->sandbox.wait_status;
    char line[96];
    snprintf(line, sizeof line, "code=%d signal=%d oom=%d killed=%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 0,
             WIFSIGNALED(status) ? WTERMSIG(status) : 0, memory_watch_saw_kill(&s->memory), s->killed);
    write_file(s->directory, "exit", line);
}

static void let_go_of_stdio(int directory) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int log = openat(directory, "runsc.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(null, 0);
    dup2(null, 1);
    dup2(log >= 0 ? log : null, 2);
    if (null > 2) close(null);
    if (log > 2) close(log);
}

static int keeper_main(struct shim *s, int ready) {
    setsid();
    const char *failed = set_up(s);
    if (failed) {
        ssize_t ignored = write(ready, failed, strlen(failed));
        (void)ignored;
        while (sandbox_kill_round(&s->sandbox)) usleep(KILL_LOOK_MS * 1000);
        unlinkat(s->directory, "agent.sock", 0);
        return 1;
    }
    let_go_of_stdio(s->directory);
    close(ready); /* its end without a word is the success */
    serve(s);
    write_exit(s);
    relay_last_words(&s->relay);
    relay_free(&s->relay);
    return 0;
}

int shim_main(int argc, char **argv) {
    static struct shim shim;
    struct shim *s = &shim;
    if (!parse(s, argc, argv)) return fail("--dir, a command line and, with --memory, its cgroup and limit are needed");
    if (close_range(3, ~0U, 0) < 0)
        for (int fd = 3; fd < 1024; fd++) close(fd);
    s->directory = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int ready[2];
    if (s->directory < 0 || pipe2(ready, O_CLOEXEC) < 0) return fail("the directory cannot be opened");
    pid_t keeper = fork();
    if (keeper < 0) return fail("no process can be made");
    if (keeper == 0) {
        close(ready[0]);
        exit(keeper_main(s, ready[1]));
    }
    close(ready[1]);
    char sentence[256];
    struct pollfd fd = {.fd = ready[0], .events = POLLIN};
    if (poll(&fd, 1, READY_LIMIT_MS) <= 0) return fail("it did not become ready in time");
    ssize_t got = read(ready[0], sentence, sizeof sentence - 1);
    if (got == 0) return 0;
    sentence[got > 0 ? got : 0] = 0;
    return fail(sentence);
}
