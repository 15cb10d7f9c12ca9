/* systrap of runsc before June 2026 wakes up every 400 us for as long as it lives: 4 % of a processor for a sandbox that
 * sleeps. Timers of a thread may be late by its timer slack, so an idle sandbox gets a wide one, which leaves a fraction of the
 * wake-ups, and the usual one as soon as its client speaks or it computes. Timers of programs in an idle sandbox may be late by
 * as much. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"

enum {
    LOOK_MS = 1000,
    QUIET_MS = 2000,        /* without a word from the client */
    IDLE_LEAST_PERMILLE = 15, /* of one processor; a runsc that sleeps when its sandbox does is left alone */
    IDLE_MOST_PERMILLE = 80,  /* runsc's own idling is 45 */
    CALM_PERMILLE = 25,       /* more than this is the work of a program: runsc's own idling is 3 then */
    WIDE_SLACK_NS = 40000000
};

typedef void visit_process(int pid, void *context);

static void visit_processes(const struct calm *c, visit_process *visit, void *context) {
    char path[4096];
    snprintf(path, sizeof path, "%s/cgroup.procs", c->cgroup);
    FILE *list = fopen(path, "re");
    if (list == NULL) return;
    for (int pid; fscanf(list, "%d", &pid) == 1;)
        if (pid > 1) visit(pid, context);
    fclose(list);
}

static void add_processor_time(int pid, void *context) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    const char *after_name = strrchr(text, ')');
    unsigned long user, system;
    if (after_name && sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) == 2)
        *(uint64_t *)context += user + system;
}

static void set_thread_slack(int tid, const char *nanoseconds) {
    char path[40];
    snprintf(path, sizeof path, "/proc/%d/timerslack_ns", tid);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t ignored = write(fd, nanoseconds, strlen(nanoseconds));
    (void)ignored;
    close(fd);
}

static void set_slack(int pid, void *context) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *threads = opendir(path);
    if (threads == NULL) return;
    for (struct dirent *entry; (entry = readdir(threads)) != NULL;)
        if (entry->d_name[0] != '.') set_thread_slack(atoi(entry->d_name), context);
    closedir(threads);
}

static void set_calm(struct calm *c, bool calm) {
    char nanoseconds[24];
    snprintf(nanoseconds, sizeof nanoseconds, "%d", calm ? WIDE_SLACK_NS : 0); /* 0: the default of the thread */
    visit_processes(c, set_slack, nanoseconds);
    c->calm = calm;
}

static void measure(struct calm *c, uint64_t now) {
    c->ticks = 0;
    visit_processes(c, add_processor_time, &c->ticks);
    c->measured_at = now;
    c->look_at = now + LOOK_MS;
}

void calm_init(struct calm *c, uint64_t now) {
    c->look_at = NO_TIME;
    c->quiet_since = now;
    if (c->cgroup) measure(c, now);
}

void calm_wake(struct calm *c, uint64_t now) {
    c->quiet_since = now;
    if (!c->calm) return;
    set_calm(c, false);
    measure(c, now);
}

void calm_run(struct calm *c, uint64_t now) {
    if (now < c->look_at) return;
    uint64_t ticks_before = c->ticks, elapsed = now - c->measured_at;
    measure(c, now);
    uint64_t spent = c->ticks > ticks_before ? c->ticks - ticks_before : 0; /* less when a process has ended */
    uint64_t permille = elapsed ? spent * 1000 * 1000 / (uint64_t)sysconf(_SC_CLK_TCK) / elapsed : 0;
    bool idles = permille >= IDLE_LEAST_PERMILLE && permille <= IDLE_MOST_PERMILLE;
    if (c->calm && permille > CALM_PERMILLE) set_calm(c, false);
    else if (!c->calm && idles && now - c->quiet_since >= QUIET_MS) set_calm(c, true);
}
