/* A cgroup event only says that the usage, page cache included, has crossed a line; whether a process has to die is decided
 * by looking at what is held. While the usage stays above the line no further event may come, so the watch goes on looking. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "clock.h"
#include "shim.h"

enum {
    TEXT_BYTES = 16384,
    LOOK_MAX_MS = 250,
    FASTEST_BYTES_PER_MS = 2 * 1024 * 1024 /* how fast memory can be filled: the time until the limit could be reached */
};

static bool read_text(const struct memory_watch *m, const char *name, char text[TEXT_BYTES]) {
    int fd = openat(m->directory, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t got = read(fd, text, TEXT_BYTES - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    return got > 0;
}

static bool read_number(const struct memory_watch *m, const char *name, uint64_t *value) {
    char text[TEXT_BYTES];
    if (!read_text(m, name, text)) return false;
    char *end;
    *value = strtoull(text, &end, 10);
    return end != text;
}

static bool write_number(const struct memory_watch *m, const char *name, uint64_t value) {
    char text[24];
    int len = snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    int fd = openat(m->directory, name, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool written = write(fd, text, (size_t)len) == len;
    close(fd);
    return written;
}

static int arm_v1(const struct memory_watch *m, const char *file, const char *arguments) {
    int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int watched = openat(m->directory, file, O_RDONLY | O_CLOEXEC);
    int control = openat(m->directory, "cgroup.event_control", O_WRONLY | O_CLOEXEC);
    char line[96];
    int len = snprintf(line, sizeof line, "%d %d %s", event, watched, arguments);
    bool armed = event >= 0 && watched >= 0 && control >= 0 && write(control, line, (size_t)len) == len;
    if (watched >= 0) close(watched);
    if (control >= 0) close(control);
    if (armed) return event;
    if (event >= 0) close(event);
    return -1;
}

static bool open_v1(struct memory_watch *m) {
    char threshold[24];
    snprintf(threshold, sizeof threshold, "%llu", (unsigned long long)m->limit);
    m->event = arm_v1(m, "memory.usage_in_bytes", threshold);
    m->oom_event = arm_v1(m, "memory.oom_control", "");
    return m->event >= 0 && m->oom_event >= 0 && read_number(m, "memory.limit_in_bytes", &m->hard_limit);
}

static bool open_v2(struct memory_watch *m) {
    char path[4096];
    snprintf(path, sizeof path, "%s/memory.events", m->cgroup);
    m->event = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    return m->event >= 0 && inotify_add_watch(m->event, path, IN_MODIFY) >= 0;
}

bool memory_watch_open(struct memory_watch *m, const char **failed) {
    m->event = m->oom_event = m->directory = -1;
    m->look_at = NO_TIME;
    if (m->version == 0) return true;
    *failed = "the memory cgroup cannot be watched";
    m->directory = open(m->cgroup, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (m->directory < 0) return false;
    m->look_at = 0; /* the line may have been crossed before */
    return m->version == 1 ? open_v1(m) : open_v2(m);
}

void memory_watch_poll(const struct memory_watch *m, struct pollfd fds[2]) {
    fds[0] = (struct pollfd){.fd = m->event, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = m->oom_event, .events = POLLIN};
}

/* The hard limit was reached and every process of the sandbox waits for memory, the agent too. */
static bool frozen(const struct memory_watch *m) {
    char text[TEXT_BYTES];
    uint64_t under_oom = 0;
    return m->version == 1 && read_text(m, "memory.oom_control", text) && stat_value(text, "under_oom", &under_oom) && under_oom;
}

static void raise_hard_limit(struct memory_watch *m) {
    if (m->raised) return;
    uint64_t higher = m->hard_limit + m->reserve;
    write_number(m, "memory.memsw.limit_in_bytes", higher); /* where swap is counted it bounds the other */
    m->raised = write_number(m, "memory.limit_in_bytes", higher);
}

static void restore_hard_limit(struct memory_watch *m) {
    if (!m->raised || !write_number(m, "memory.limit_in_bytes", m->hard_limit)) return; /* busy: at the next look */
    write_number(m, "memory.memsw.limit_in_bytes", m->hard_limit);
    m->raised = false;
}

static uint64_t next_look(uint64_t now, uint64_t distance) {
    uint64_t wait = distance / FASTEST_BYTES_PER_MS;
    if (wait < MEMORY_LOOK_MS) wait = MEMORY_LOOK_MS;
    return now + (wait < LOOK_MAX_MS ? wait : LOOK_MAX_MS);
}

static bool look(struct memory_watch *m, uint64_t now) {
    char text[TEXT_BYTES];
    uint64_t held = 0, usage = 0;
    bool known = read_text(m, "memory.stat", text) && stat_held_bytes(text, m->version, &held);
    bool stuck = frozen(m);
    if (stuck) raise_hard_limit(m);
    if (stuck || (known && held > m->limit)) {
        m->look_at = now + MEMORY_LOOK_MS;
        return true;
    }
    restore_hard_limit(m);
    bool above = read_number(m, m->version == 1 ? "memory.usage_in_bytes" : "memory.current", &usage) && usage >= m->limit;
    m->look_at = above || m->raised ? next_look(now, m->limit - held) : NO_TIME;
    return false;
}

bool memory_watch_run(struct memory_watch *m, const struct pollfd fds[2], uint64_t now) {
    if (m->version == 0) return false;
    bool event = false;
    char drain[4096];
    for (int i = 0; i < 2; i++)
        if (fds[i].fd >= 0 && fds[i].revents && read(fds[i].fd, drain, sizeof drain) > 0) event = true;
    return (event || now >= m->look_at) && look(m, now);
}

bool memory_watch_saw_kill(const struct memory_watch *m) {
    char text[TEXT_BYTES];
    uint64_t kills = 0;
    if (m->version == 0) return false;
    const char *file = m->version == 1 ? "memory.oom_control" : "memory.events";
    return read_text(m, file, text) && stat_value(text, "oom_kill", &kills) && kills > 0;
}
