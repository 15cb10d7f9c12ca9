#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "bytes.h"

enum { EVENT_BYTES = 64 * 1024, WATCHED = IN_CREATE | IN_DELETE | IN_MODIFY | IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO |
       IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF };

enum change { CHANGE_CREATED = 1, CHANGE_MODIFIED = 2, CHANGE_DELETED = 3, CHANGE_READY = 4 };

static struct {
    int watch;
    char *path;
} watched[MAX_WATCHED];
static size_t watched_count;
static int queue_fd;
static bool recursive;

static const char *path_of(int watch) {
    for (size_t i = 0; i < watched_count; i++)
        if (watched[i].watch == watch) return watched[i].path;
    return NULL;
}

static void forget(int watch) {
    for (size_t i = 0; i < watched_count; i++) {
        if (watched[i].watch != watch) continue;
        free(watched[i].path);
        watched[i] = watched[--watched_count];
        return;
    }
}

/* By the descriptor, so that what is watched is what was found. */
static enum fault add(int fd, const char *path) {
    char through[32];
    snprintf(through, sizeof through, "/proc/self/fd/%d", fd);
    int watch = inotify_add_watch(queue_fd, through, WATCHED);
    if (watch < 0) return errno == ENOSPC ? FAULT_TOO_MANY : fault_of(errno);
    if (path_of(watch)) forget(watch); /* it was moved */
    if (watched_count == MAX_WATCHED) {
        inotify_rm_watch(queue_fd, watch);
        return FAULT_TOO_MANY;
    }
    size_t len = strlen(path) + 1;
    watched[watched_count].path = memcpy(must_resize(NULL, len), path, len);
    watched[watched_count++].watch = watch;
    return FAULT_NONE;
}

/* Takes the descriptor. `tell`: what is found is new. */
static enum fault add_tree(int folder, const char *path, unsigned level, bool tell) {
    enum fault fault = add(folder, path);
    DIR *listing = fault || !recursive || level >= MAX_LIST_DEPTH ? NULL : fdopendir(folder);
    if (listing == NULL) {
        close(folder);
        return fault;
    }
    for (struct dirent *entry; !fault && (entry = readdir(listing)) != NULL;) {
        char inner_path[MAX_PATH_TEXT];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        int len = snprintf(inner_path, sizeof inner_path, "%s/%s", path, entry->d_name);
        if (len < 0 || len >= MAX_PATH_TEXT) continue;
        if (tell) record_bytes(RECORD_EVENT, CHANGE_CREATED, inner_path);
        int inner = openat(dirfd(listing), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (inner >= 0) fault = add_tree(inner, inner_path, level + 1, tell);
    }
    closedir(listing);
    return fault;
}

/* A new folder below a watched one; by then it may be gone or be something else. */
static void add_new(const char *path) {
    struct place p;
    int folder;
    if (place_find(path, LINK_KEEP, MISSING_REFUSE, &p) != FAULT_NONE) return;
    if (place_open_folder(&p, &folder) == FAULT_NONE && add_tree(folder, path, 1, true) == FAULT_TOO_MANY)
        record_bytes(RECORD_OVERFLOW, 0, path);
    place_close(&p);
}

/* Returns false when what was watched is gone. */
static bool tell(const struct inotify_event *event) {
    if (event->mask & IN_Q_OVERFLOW) {
        record_bytes(RECORD_OVERFLOW, 0, "");
        return true;
    }
    const char *folder = path_of(event->wd);
    if (folder == NULL) return true;
    char path[MAX_PATH_TEXT];
    bool named = event->len > 0 && event->name[0];
    int len = named ? snprintf(path, sizeof path, "%s/%s", strcmp(folder, "/") ? folder : "", event->name)
                    : snprintf(path, sizeof path, "%s", folder);
    if (len < 0 || len >= MAX_PATH_TEXT) return true;
    if (event->mask & IN_IGNORED) {
        bool first = watched_count > 0 && watched[0].watch == event->wd;
        forget(event->wd);
        return !first;
    }
    if (event->mask & (IN_CREATE | IN_MOVED_TO)) {
        record_bytes(RECORD_EVENT, CHANGE_CREATED, path);
        if (event->mask & IN_ISDIR && recursive) add_new(path);
    } else if (event->mask & (IN_DELETE | IN_MOVED_FROM) || (!named && event->mask & (IN_DELETE_SELF | IN_MOVE_SELF))) {
        record_bytes(RECORD_EVENT, CHANGE_DELETED, path);
    } else if (event->mask & (IN_MODIFY | IN_CLOSE_WRITE | IN_ATTRIB)) {
        record_bytes(RECORD_EVENT, CHANGE_MODIFIED, path);
    }
    return true;
}

/* watch PATH tree|flat: changes until the input ends or what is watched is gone */
enum fault files_watch(char **arguments) {
    recursive = strcmp(arguments[1], "tree") == 0;
    struct place p;
    enum fault fault = place_find(arguments[0], LINK_FOLLOW, MISSING_REFUSE, &p);
    if (fault) return fault;
    queue_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (queue_fd < 0) return FAULT_TOO_MANY;
    int fd = openat(p.dir, p.name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return fault_of(errno);
    if (S_ISDIR(p.st.st_mode)) {
        fault = add_tree(fd, p.path, 1, false);
    } else {
        fault = add(fd, p.path);
        close(fd);
    }
    if (fault) return fault;
    record_bytes(RECORD_EVENT, CHANGE_READY, p.path);
    for (;;) {
        static uint8_t events[EVENT_BYTES] __attribute__((aligned(__alignof__(struct inotify_event))));
        struct pollfd fds[2] = {{.fd = queue_fd, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR) return FAULT_UNKNOWN;
        if (fds[1].revents) return FAULT_NONE;
        ssize_t got = read(queue_fd, events, sizeof events);
        for (ssize_t at = 0; at < got;) {
            const struct inotify_event *event = (const struct inotify_event *)(events + at);
            if (!tell(event)) return FAULT_NOT_FOUND;
            at += (ssize_t)(sizeof *event + event->len);
        }
    }
}
