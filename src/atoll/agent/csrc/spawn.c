/* The child shares the agent's memory until it executes (as vfork, but the agent is not suspended by the kernel: a
 * command may stop every process of its uid with kill(-1, SIGSTOP), and a suspended agent would then hang for ever).
 * The agent waits on a close-on-exec pipe, with a limit. What the child may touch is its own stack, the plan, and the report. */
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bytes.h"
#include "proctree.h"

#if defined(__SANITIZE_ADDRESS__)
#define SHARED_MEMORY 0 /* the sanitizers keep books about stacks; a plain fork is right for them, only slower */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SHARED_MEMORY 0
#endif
#endif
#ifndef SHARED_MEMORY
#define SHARED_MEMORY CLONE_VM
#endif

enum { STACK_BYTES = 64 * 1024, EXEC_LIMIT_MS = 10000, EXEC_LOOK_MS = 20 };

enum stage { STAGE_NONE, STAGE_IDENTITY, STAGE_CWD };

/* Shared between the two; the child writes it. */
struct report {
    volatile enum stage failed;
};

struct child_work {
    const struct identity *identity;
    const struct spawn_plan *plan;
    char **candidates; /* paths to try, in this order */
    struct report *report;
};

static const char usual_path[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const char *environment_value(char **env, const char *name) {
    size_t len = strlen(name);
    for (; *env; env++)
        if (strncmp(*env, name, len) == 0 && (*env)[len] == '=') return *env + len + 1;
    return NULL;
}

const char *spawn_prepare(const struct identity *identity) {
    /* PR_SET_DUMPABLE keeps commands from tracing a child that has their uid already and still the agent's memory. */
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) return "PR_SET_DUMPABLE";
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return "PR_SET_NO_NEW_PRIVS";
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); /* a kernel without it has no ambient set */
    for (unsigned long cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0 && prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1) return "PR_CAPBSET_DROP";
    /* The change of the uid empties the permitted and the effective set, and executing with an empty bounding set keeps
     * them so; what is inherited has to go by hand. */
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    if (syscall(SYS_capget, &head, sets) < 0) return "capget";
    sets[0].inheritable = sets[1].inheritable = 0;
    if (syscall(SYS_capset, &head, sets) < 0) return "capset";
    if (prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0) < 0) return "PR_SET_KEEPCAPS";
    if (syscall(SYS_setgroups, 0, NULL) < 0) return "setgroups";
    struct rlimit none = {0, 0};
    if (setrlimit(RLIMIT_CORE, &none) < 0) return "RLIMIT_CORE";
    if (identity->nproc) {
        struct rlimit processes = {identity->nproc, identity->nproc};
        if (setrlimit(RLIMIT_NPROC, &processes) < 0) return "RLIMIT_NPROC";
    }
    /* Not by signal(): glibc refuses its own two, which its posix_spawn leaves ignored in what it starts. */
    const struct { void *handler; unsigned long flags; void *restorer; uint64_t mask; } usual = {0};
    for (int number = 1; number < NSIG; number++) syscall(SYS_rt_sigaction, number, &usual, NULL, sizeof usual.mask);
    umask(022);
    return NULL;
}

static void say(const char *name, const char *what) {
    /* One write, so that it is one line also when the pipe is shared. */
    char text[512];
    size_t len = strnlen(name, 300);
    memcpy(text, "atoll: ", 7);
    memcpy(text + 7, name, len);
    size_t rest = strlen(what);
    memcpy(text + 7 + len, what, rest);
    ssize_t ignored = write(2, text, 7 + len + rest);
    (void)ignored;
}

static const char *exec_sentence(int error) {
    switch (error) {
    case EACCES: return ": permission denied\n";
    case ENOEXEC: return ": not a program this machine can run\n";
    case E2BIG: return ": the arguments and the environment are too long\n";
    case EAGAIN: return ": too many processes\n";
    case ENOMEM: return ": not enough memory\n";
    case ELOOP: return ": too many symbolic links\n";
    default: return ": cannot be executed\n";
    }
}

static void enter_terminal(void) {
    ioctl(0, TIOCSCTTY, 0); /* opened before setsid, so it is not the controlling terminal by itself */
    pid_t own = getpid();
    ioctl(0, TIOCSPGRP, &own);
}

static void place_stdio(const int from[3]) {
    /* The three may be numbered 0 to 2 themselves only in part; the agent keeps its own 0 to 2 busy, so they are not. */
    for (int i = 0; i < 3; i++) dup2(from[i], i);
}

__attribute__((no_sanitize("address"))) static int child_main(void *argument) {
    const struct child_work *work = argument;
    const struct spawn_plan *plan = work->plan;
    const struct identity *identity = work->identity;
    setsid();
    place_stdio(plan->stdio);
    if (plan->terminal) enter_terminal();
    struct rlimit tag = {plan->tag, plan->tag};
    setrlimit(TREE_TAG_LIMIT, &tag);
    if (syscall(SYS_setresgid, identity->gid, identity->gid, identity->gid) < 0 ||
        syscall(SYS_setresuid, identity->uid, identity->uid, identity->uid) < 0) {
        work->report->failed = STAGE_IDENTITY;
        _exit(126);
    }
    if (chdir(plan->cwd ? plan->cwd : identity->workdir) < 0) { /* as the user, so that it is no oracle */
        work->report->failed = STAGE_CWD;
        _exit(126);
    }
    sigset_t all_open;
    sigemptyset(&all_open);
    sigprocmask(SIG_SETMASK, &all_open, NULL);

    int worst = ENOENT;
    for (char **path = work->candidates; *path; path++) {
        execve(*path, plan->argv, plan->env);
        if (errno != ENOENT && errno != ENOTDIR) worst = errno;
        if (errno != ENOENT && errno != ENOTDIR && errno != EACCES) break;
    }
    say(plan->argv[0], worst == ENOENT ? ": not found\n" : exec_sentence(worst));
    _exit(worst == ENOENT ? 127 : 126);
}

/* argv[0] itself when it holds a slash, else one candidate for every directory of PATH. One allocation. */
static char **list_candidates(const char *name, char **env) {
    const char *path = environment_value(env, "PATH");
    if (path == NULL || *path == 0) path = usual_path;
    size_t entries = 1;
    for (const char *at = path; *at; at++) entries += *at == ':';
    size_t name_len = strlen(name);
    char **list = must_alloc((entries + 1) * sizeof(char *) + strlen(path) + entries * (name_len + 3));
    char *chars = (char *)(list + entries + 1);
    if (strchr(name, '/')) {
        list[0] = memcpy(chars, name, name_len + 1);
        return list;
    }
    for (size_t i = 0; i < entries; i++) {
        size_t len = strcspn(path, ":");
        list[i] = chars;
        if (len == 0) *chars++ = '.';
        memcpy(chars, path, len);
        chars += len;
        *chars++ = '/';
        memcpy(chars, name, name_len + 1);
        chars += name_len + 1;
        path += len + (path[len] == ':');
    }
    return list;
}

/* Waits for the pipe's end, which is the exec or the death of the child. One that was stopped on its way goes on. */
static bool wait_for_exec(int fd, pid_t child) {
    struct pollfd pipe_end = {.fd = fd, .events = POLLIN};
    for (int waited = 0; waited < EXEC_LIMIT_MS; waited += EXEC_LOOK_MS) {
        if (poll(&pipe_end, 1, EXEC_LOOK_MS) > 0) return true;
        if (process_state(child) == 'T') kill(child, SIGCONT);
    }
    return false;
}

static uint8_t *map_shared(size_t len) {
    void *block = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return block == MAP_FAILED ? NULL : block;
}

enum spawn_outcome spawn_process(const struct identity *identity, const struct spawn_plan *plan, pid_t *pid) {
    static uint8_t *block; /* the child's stack and, above it, the report; one spawn at a time uses it */
    if (block == NULL && (block = map_shared(STACK_BYTES + sizeof(struct report))) == NULL) return SPAWN_FAILED;
    int status_pipe[2];
    if (pipe2(status_pipe, O_CLOEXEC) < 0) return SPAWN_FAILED;
    struct report *report = (struct report *)(block + STACK_BYTES);
    report->failed = STAGE_NONE;
    struct child_work work = {identity, plan, list_candidates(plan->argv[0], plan->env), report};
    pid_t child = clone(child_main, block + STACK_BYTES, SHARED_MEMORY | SIGCHLD, &work);
    close(status_pipe[1]);
    if (child < 0) {
        close(status_pipe[0]);
        free(work.candidates);
        return SPAWN_FAILED;
    }
    bool in_time = wait_for_exec(status_pipe[0], child);
    close(status_pipe[0]);
    if (!in_time) kill(child, SIGKILL);
    if (!in_time || report->failed != STAGE_NONE) {
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
        free(work.candidates);
        return report->failed == STAGE_CWD ? SPAWN_NO_CWD : SPAWN_FAILED;
    }
    free(work.candidates);
    *pid = child;
    return SPAWN_OK;
}
