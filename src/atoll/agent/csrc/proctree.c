#include "proctree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"

enum { FREEZE_ROUNDS = 32, KILL_ROUNDS = 32 };

static bool read_stat(pid_t pid, struct process *p) {
    char path[40], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) return false;
    text[got] = 0;
    /* The name is the command's to choose and may hold anything, also ") R 1"; what follows its last ')' is the kernel's. */
    const char *after = strrchr(text, ')');
    int parent, group, session;
    unsigned long long rss = 0, tag = 0;
    int fields = after ? sscanf(after + 1,
                                " %c %d %d %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu %llu",
                                &p->state, &parent, &group, &session, &rss, &tag)
                       : 0;
    if (fields < 4) return false;
    p->pid = pid;
    p->parent = parent;
    p->group = group;
    p->session = session;
    p->rss_pages = rss;
    p->tag = tag; /* field 25, the soft limit of the resident set */
    return true;
}

uint64_t process_pages(pid_t pid) {
    struct process p;
    return read_stat(pid, &p) ? p.rss_pages : 0;
}

char process_state(pid_t pid) {
    struct process p;
    return read_stat(pid, &p) ? p.state : 0;
}

static bool has_member(const struct snapshot *s, pid_t pid) {
    for (size_t i = 0; i < s->count; i++)
        if (s->list[i].pid == pid) return s->list[i].member;
    return false;
}

/* The children of members, to any depth. The order of /proc is not that of descent, so again until nothing changes. */
static void add_descendants(struct snapshot *s) {
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < s->count; i++) {
            struct process *p = &s->list[i];
            if (!p->member && p->parent > 1 && has_member(s, p->parent)) changed = p->member = true;
        }
    }
}

/* Outside a namespace of its own the agent sees the machine: nothing but its descendants (it is their reaper) is its business. */
static void keep_descendants(struct snapshot *s) {
    for (size_t i = 0; i < s->count; i++) s->list[i].member = s->list[i].parent == getpid();
    add_descendants(s);
    size_t kept = 0;
    for (size_t i = 0; i < s->count; i++)
        if (s->list[i].member) s->list[kept++] = s->list[i];
    s->count = kept;
}

void snapshot_take(struct snapshot *s) {
    s->count = 0;
    DIR *proc = opendir("/proc");
    if (proc == NULL) return;
    for (struct dirent *entry; (entry = readdir(proc)) != NULL;) {
        pid_t pid = (pid_t)atoi(entry->d_name);
        if (pid <= 0 || pid == getpid()) continue;
        if (s->count == s->cap) {
            s->cap = s->cap ? s->cap * 2 : 32;
            s->list = must_resize(s->list, s->cap * sizeof *s->list);
        }
        if (read_stat(pid, &s->list[s->count])) s->count++;
    }
    closedir(proc);
    if (getpid() != 1) keep_descendants(s);
}

void snapshot_free(struct snapshot *s) {
    free(s->list);
    *s = (struct snapshot){0};
}

static bool belongs(const struct process *p, struct tree tree) {
    if (p->tag == tree.tag) return true;
    return tree.root != 0 && (p->pid == tree.root || p->session == tree.root || p->group == tree.root);
}

size_t snapshot_mark(struct snapshot *s, struct tree tree) {
    for (size_t i = 0; i < s->count; i++) s->list[i].member = belongs(&s->list[i], tree);
    add_descendants(s);
    size_t alive = 0;
    for (size_t i = 0; i < s->count; i++) alive += s->list[i].member && s->list[i].state != 'Z' && s->list[i].state != 'X';
    return alive;
}

const struct process *snapshot_largest(const struct snapshot *s) {
    const struct process *largest = NULL;
    for (size_t i = 0; i < s->count; i++) {
        const struct process *p = &s->list[i];
        if (p->state == 'Z' || p->state == 'X') continue;
        if (largest == NULL || p->rss_pages > largest->rss_pages) largest = p;
    }
    return largest;
}

static void signal_members(const struct snapshot *s, struct tree tree, int number) {
    if (s->count == 0 && tree.root != 0) kill(-tree.root, number); /* no /proc: at least the process group */
    for (size_t i = 0; i < s->count; i++)
        if (s->list[i].member) kill(s->list[i].pid, number);
}

void tree_signal(struct tree tree, int number) {
    struct snapshot s = {0};
    snapshot_take(&s);
    snapshot_mark(&s, tree);
    signal_members(&s, tree, number);
    snapshot_free(&s);
}

/* Stops every member that is not stopped yet; returns whether there was one. */
static bool freeze_members(const struct snapshot *s) {
    bool any = false;
    for (size_t i = 0; i < s->count; i++) {
        const struct process *p = &s->list[i];
        if (!p->member || strchr("ZXTt", p->state)) continue;
        any = true;
        kill(p->pid, SIGSTOP);
    }
    return any;
}

void tree_kill(struct tree tree) {
    struct snapshot s = {0};
    /* A fork bomb refills every place that a kill frees. Stopped processes keep their places, so stop all, then kill all. */
    for (int round = 0; round < FREEZE_ROUNDS; round++) {
        snapshot_take(&s);
        if (snapshot_mark(&s, tree) <= 1 || !freeze_members(&s)) break;
        sched_yield();
    }
    for (int round = 0; round < KILL_ROUNDS; round++) {
        if (round > 0) {
            sched_yield();
            snapshot_take(&s);
            if (snapshot_mark(&s, tree) == 0) break;
        }
        signal_members(&s, tree, SIGKILL);
    }
    snapshot_free(&s);
}
