/* Walks a path one name at a time below a root, each name opened without following it, links resolved by hand. The way up
 * (`..`) is the remembered descriptor and not the file system's, so that a folder that is moved away meanwhile cannot
 * take the walk along. openat2 would do much of this; gVisor does not have it. */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { MAX_RETRIES = 64 };

static struct root roots[MAX_ROOTS];
static size_t root_count;

/* The folders from a root down to where the walk is. */
static struct {
    const struct root *root;
    int fds[MAX_LEVELS + 1]; /* fds[0] is the root's own */
    char names[MAX_LEVELS + 1][NAME_BYTES];
    size_t depth;
} walk;

enum fault roots_open(char **paths, size_t count) {
    if (count == 0 || count > MAX_ROOTS) return FAULT_BAD_INPUT;
    for (size_t i = 0; i < count; i++) {
        struct root *root = &roots[root_count];
        size_t len = strlen(paths[i]);
        if (paths[i][0] != '/' || len >= sizeof root->path) return FAULT_BAD_INPUT;
        memcpy(root->path, paths[i], len + 1);
        root->fd = open(paths[i], O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (root->fd < 0) return fault_of(errno);
        root_count++;
    }
    return FAULT_NONE;
}

bool is_root(const struct stat *st) {
    struct stat root;
    for (size_t i = 0; i < root_count; i++)
        if (fstat(roots[i].fd, &root) == 0 && root.st_dev == st->st_dev && root.st_ino == st->st_ino) return true;
    return false;
}

struct dirent *next_entry(DIR *listing, enum fault *fault) {
    errno = 0;
    struct dirent *entry = readdir(listing);
    if (entry == NULL && errno != 0) *fault = fault_of(errno);
    return entry;
}

static void walk_up(void) {
    if (walk.depth > 0) close(walk.fds[walk.depth--]);
}

static void walk_from(const struct root *root) {
    while (walk.root && walk.depth > 0) walk_up();
    walk.root = root;
    walk.fds[0] = root->fd;
    walk.depth = 0;
}

static size_t next_name(const char **at, const char **name) {
    for (;;) {
        while (**at == '/') ++*at;
        *name = *at;
        size_t len = strcspn(*at, "/");
        *at += len;
        if (len != 1 || **name != '.') return len;
    }
}

static bool is_last(const char *at) {
    const char *name;
    return next_name(&at, &name) == 0;
}

/* What is left of an absolute path below the root, or NULL. */
static const char *below(const struct root *root, const char *path) {
    const char *mine = root->path, *a, *b;
    for (;;) {
        size_t wanted = next_name(&mine, &a);
        if (wanted == 0) return path;
        size_t len = next_name(&path, &b);
        if (len != wanted || memcmp(a, b, len) != 0) return NULL;
    }
}

/* Starts at the outermost root that holds the path: a volume that is mounted below it is met on the way. */
static const char *enter_root(const char *path) {
    const char *best = NULL;
    const struct root *chosen = NULL;
    for (size_t i = 0; i < root_count; i++) {
        const char *rest = below(&roots[i], path);
        if (rest && (chosen == NULL || strlen(rest) > strlen(best))) {
            best = rest;
            chosen = &roots[i];
        }
    }
    if (chosen) walk_from(chosen);
    return best;
}

static enum fault compose(const char *last, struct place *p) {
    size_t len = strlen(walk.root->path);
    while (len > 1 && walk.root->path[len - 1] == '/') len--;
    memcpy(p->path, walk.root->path, len);
    for (size_t level = 1; level <= walk.depth + (last != NULL); level++) {
        const char *name = level <= walk.depth ? walk.names[level] : last;
        size_t more = strlen(name);
        if (len + more + 2 > sizeof p->path) return FAULT_NAME_TOO_LONG;
        if (len > 1) p->path[len++] = '/';
        memcpy(p->path + len, name, more);
        len += more;
    }
    p->path[len] = 0;
    return FAULT_NONE;
}

/* The place `name` in the folder where the walk is; `name` NULL: that folder itself. */
static enum fault arrive(const char *name, const struct stat *st, struct place *p) {
    enum fault fault = compose(name, p);
    if (fault) return fault;
    size_t folder = walk.depth;
    if (name == NULL && folder > 0) name = walk.names[folder--];
    snprintf(p->name, sizeof p->name, "%s", name ? name : ".");
    p->dir = fcntl(walk.fds[folder], F_DUPFD_CLOEXEC, 3);
    if (p->dir < 0) return fault_of(errno);
    p->exists = st != NULL;
    if (st) p->st = *st;
    return FAULT_NONE;
}

/* Puts a link's target in front of what is left of the path. */
static enum fault follow(const char *name, char *pending, const char **at) {
    char target[MAX_PATH_TEXT];
    ssize_t len = readlinkat(walk.fds[walk.depth], name, target, sizeof target - 1);
    if (len < 0) return errno == EINVAL || errno == ENOENT ? FAULT_CHANGED : fault_of(errno);
    target[len] = 0;
    const char *from = target;
    if (target[0] == '/' && (from = enter_root(target)) == NULL) return FAULT_ESCAPE;
    size_t head = strlen(from), rest = strlen(*at);
    if (head + rest + 2 > MAX_PATH_TEXT) return FAULT_NAME_TOO_LONG;
    memmove(pending + head + 1, *at, rest + 1);
    memcpy(pending, from, head);
    pending[head] = '/';
    *at = pending;
    return FAULT_NONE;
}

static enum fault descend(const char *name, size_t len, int fd) {
    if (walk.depth >= MAX_LEVELS) {
        close(fd);
        return FAULT_TOO_DEEP;
    }
    walk.depth++;
    walk.fds[walk.depth] = fd;
    memcpy(walk.names[walk.depth], name, len);
    walk.names[walk.depth][len] = 0;
    return FAULT_NONE;
}

enum fault place_find(const char *path, enum last_link last, enum missing missing, struct place *found) {
    static char pending[MAX_PATH_TEXT];
    found->dir = -1;
    if (strlen(path) >= sizeof pending) return FAULT_NAME_TOO_LONG;
    const char *at = path;
    if (path[0] == '/') {
        if ((at = enter_root(path)) == NULL) return FAULT_ESCAPE;
    } else {
        walk_from(&roots[0]);
    }
    memmove(pending, at, strlen(at) + 1);
    at = pending;
    for (unsigned links = 0, retries = 0; retries < MAX_RETRIES;) {
        const char *begin = at, *word;
        size_t len = next_name(&at, &word);
        struct stat st;
        if (len == 0) return fstat(walk.fds[walk.depth], &st) < 0 ? fault_of(errno) : arrive(NULL, &st, found);
        if (len >= NAME_BYTES) return FAULT_NAME_TOO_LONG;
        char name[NAME_BYTES];
        memcpy(name, word, len);
        name[len] = 0;
        if (strcmp(name, "..") == 0) {
            if (walk.depth == 0) return FAULT_ESCAPE;
            walk_up();
            continue;
        }
        int here = walk.fds[walk.depth], fd = openat(here, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT && missing != MISSING_REFUSE) {
            if (is_last(at)) return arrive(name, NULL, found);
            if (missing == MISSING_LAST) return FAULT_NOT_FOUND;
            if (mkdirat(here, name, 0755) < 0 && errno != EEXIST) return fault_of(errno);
            at = begin;
            retries++;
            continue;
        }
        if (fd < 0) return fault_of(errno);
        if (fstat(fd, &st) < 0) {
            close(fd);
            return fault_of(errno);
        }
        bool final = is_last(at);
        if (S_ISDIR(st.st_mode)) {
            enum fault fault = descend(name, len, fd);
            if (fault) return fault;
            retries = 0; /* they are for one name: a long way of missing folders is no race */
            continue;
        }
        close(fd);
        if (S_ISLNK(st.st_mode) && !(final && last == LINK_KEEP)) {
            if (++links > MAX_LINKS) return FAULT_LINK_LOOP;
            enum fault fault = follow(name, pending, &at);
            if (fault == FAULT_CHANGED) {
                at = begin;
                retries++;
            } else if (fault) {
                return fault;
            }
            continue;
        }
        return final ? arrive(name, &st, found) : FAULT_NOT_FOLDER;
    }
    return FAULT_CHANGED;
}

enum fault place_open_folder(const struct place *p, int *fd) {
    *fd = openat(p->dir, p->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return *fd < 0 ? fault_of(errno) : FAULT_NONE;
}

enum fault place_root(const struct place *base) {
    int fd = openat(base->dir, base->name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return fault_of(errno);
    walk_from(&roots[0]); /* gives back what the walk to it holds */
    memcpy(roots[0].path, base->path, strlen(base->path) + 1);
    roots[0].fd = fd;
    root_count = 1;
    walk_from(&roots[0]);
    return FAULT_NONE;
}

void place_close(struct place *p) {
    if (p->dir >= 0) close(p->dir);
    p->dir = -1;
}

bool name_temporary(char *name, size_t len) {
    uint64_t word;
    if (getrandom(&word, sizeof word, 0) != sizeof word) return false;
    snprintf(name, len, ".atoll-%016llx.part", (unsigned long long)word);
    return true;
}
