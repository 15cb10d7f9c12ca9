#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proctree.h"
#include "shim.h"

enum { START_LIMIT_MS = 30000, CGROUP_DEPTH = 8 };

bool write_file(int directory, const char *name, const char *text) {
    char temporary[64];
    snprintf(temporary, sizeof temporary, ".%s.new", name);
    int fd = openat(directory, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    size_t len = strlen(text);
    bool written = write(fd, text, len) == (ssize_t)len;
    close(fd);
    return written && renameat(directory, temporary, directory, name) == 0;
}

static bool write_at(int directory, const char *name, const char *text) {
    int fd = openat(directory, name, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool written = write(fd, text, strlen(text)) > 0;
    close(fd);
    return written;
}

static bool own_mounts(void) {
    if (unshare(CLONE_NEWNS) < 0) return false;
    /* A slave, not private: what the host unmounts must not stay busy in here. */
    return mount("", "/", NULL, MS_REC | MS_SLAVE, NULL) == 0;
}

/* runsc refuses the root network namespace where /proc/sys/net/core/rmem_default shows up in every namespace (Linux >= 6.17). */
static bool hide_proc_sys_net(void) {
    return mount("tmpfs", "/proc/sys/net", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k") == 0;
}

/* runsc hands the machine's memory on when it does not set up the cgroups itself, and runtimes that size their heap by it
 * would grow until they are killed. A mount that fails costs only that. */
static void show_meminfo(const char *path) {
    int ignored = mount(path, "/proc/meminfo", NULL, MS_BIND, NULL);
    (void)ignored;
}

static void report(int fd, const char *what) {
    char text[256];
    int len = snprintf(text, sizeof text, "%s: %s", what, strerror(errno));
    ssize_t ignored = write(fd, text, (size_t)len);
    (void)ignored;
    _exit(126);
}

static void child_main(const struct sandbox *s, int directory, int connection, int status) {
    for (const char **join = s->joins; *join; join++)
        if (!write_at(AT_FDCWD, *join, "0")) report(status, "a cgroup cannot be joined");
    if ((s->hide_proc_sys_net || s->meminfo) && !own_mounts()) report(status, "no mount namespace");
    if (s->hide_proc_sys_net && !hide_proc_sys_net()) report(status, "/proc/sys/net cannot be hidden");
    if (s->meminfo) show_meminfo(s->meminfo);
    int log = openat(directory, "runsc.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log < 0) report(status, "runsc.log");
    dup2(connection, 0);
    dup2(connection, 1);
    dup2(log, 2);
    setsid();
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(s->argv[0], s->argv);
    report(status, "the command cannot be executed");
}

bool sandbox_start(struct sandbox *s, int directory, int connection, const char **failed) {
    static char sentence[256];
    int status[2];
    *failed = "no process can be made";
    if (pipe2(status, O_CLOEXEC) < 0) return false;
    s->pid = fork();
    if (s->pid == 0) child_main(s, directory, connection, status[1]);
    close(status[1]);
    close(connection);
    ssize_t got = 0;
    struct pollfd fd = {.fd = status[0], .events = POLLIN};
    if (s->pid > 0 && poll(&fd, 1, START_LIMIT_MS) > 0) got = read(status[0], sentence, sizeof sentence - 1);
    close(status[0]);
    if (s->pid > 0 && got == 0) return true;
    if (got > 0) *failed = sentence;
    return false;
}

void sandbox_reap(struct sandbox *s) {
    int wait_status;
    for (pid_t pid; (pid = waitpid(-1, &wait_status, WNOHANG)) > 0;) {
        if (pid != s->pid) continue;
        s->pid = 0;
        s->wait_status = wait_status;
    }
}

static bool kill_listed(int directory) {
    int fd = openat(directory, "cgroup.procs", O_RDONLY | O_CLOEXEC);
    FILE *list = fd < 0 ? NULL : fdopen(fd, "r");
    if (list == NULL) {
        if (fd >= 0) close(fd);
        return false;
    }
    bool any = false;
    for (int pid; fscanf(list, "%d", &pid) == 1;) {
        if (pid <= 1 || pid == getpid()) continue; /* 0: of another pid namespace */
        any = true;
        kill(pid, SIGKILL);
    }
    fclose(list);
    return any;
}

/* This cgroup and those below. Returns whether a process was in one. */
static bool kill_cgroup(int parent, const char *name, int depth) {
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (directory == NULL) {
        if (fd >= 0) close(fd);
        return false;
    }
    /* What is frozen does not die before it is thawed. Each file is there in one version of cgroups only. */
    write_at(fd, "cgroup.freeze", "0");
    write_at(fd, "freezer.state", "THAWED");
    bool any = kill_listed(fd);
    for (struct dirent *entry; depth > 0 && (entry = readdir(directory)) != NULL;)
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.') any |= kill_cgroup(fd, entry->d_name, depth - 1);
    closedir(directory);
    return any;
}

bool sandbox_kill_round(struct sandbox *s) {
    bool any = false;
    for (const char **cgroup = s->kill_cgroups; *cgroup; cgroup++) any |= kill_cgroup(AT_FDCWD, *cgroup, CGROUP_DEPTH);
    struct snapshot descendants = {0}; /* the shim adopts every orphan below it, so nothing else is the sandbox's */
    snapshot_take(&descendants);
    for (size_t i = 0; i < descendants.count; i++) kill(descendants.list[i].pid, SIGKILL);
    any |= descendants.count > 0;
    snapshot_free(&descendants);
    sandbox_reap(s);
    return any || s->pid > 0;
}
