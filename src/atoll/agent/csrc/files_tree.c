#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"

enum { DELETE_PASSES = 8, LIST_PAGE_BYTES = 4 * 1024 * 1024 };

static enum fault show(const struct place *p) {
    return record_entry(p->dir, p->name, p->path) ? FAULT_NONE : FAULT_NOT_FOUND;
}

/* stat PATH: a link is shown itself, not followed */
enum fault files_stat(char **arguments) {
    struct place p;
    enum fault fault = place_find(arguments[0], LINK_KEEP, MISSING_REFUSE, &p);
    return fault ? fault : show(&p);
}

/* mkdir PATH MODE (octal): with the folders above it; one that is there already is fine and keeps its mode */
enum fault files_mkdir(char **arguments) {
    uint64_t mode;
    if (!parse_number(arguments[1], 8, 0777, &mode)) return FAULT_BAD_INPUT;
    struct place p;
    enum fault fault = place_find(arguments[0], LINK_FOLLOW, MISSING_MAKE, &p);
    if (fault) return fault;
    if (!p.exists) {
        umask(0);
        if (mkdirat(p.dir, p.name, (mode_t)mode) < 0) return fault_of(errno);
    } else if (!S_ISDIR(p.st.st_mode)) {
        return FAULT_EXISTS;
    }
    return show(&p);
}

/* move FROM TO replace|keep: links themselves are moved; folders above TO are made */
enum fault files_move(char **arguments) {
    struct place from, to;
    enum fault fault = place_find(arguments[0], LINK_KEEP, MISSING_REFUSE, &from);
    if (fault) return fault;
    fault = place_find(arguments[1], LINK_KEEP, MISSING_MAKE, &to);
    if (fault) return fault;
    if (strcmp(from.name, ".") == 0 || strcmp(to.name, ".") == 0) return FAULT_BUSY;
    bool replace = strcmp(arguments[2], "replace") == 0;
    if (!replace && to.exists) return FAULT_EXISTS;
    int failed = renameat2(from.dir, from.name, to.dir, to.name, replace ? 0 : RENAME_NOREPLACE);
    /* A file system that cannot do it without replacing has only the look before. */
    if (failed < 0 && !replace && (errno == EINVAL || errno == ENOSYS))
        failed = renameat(from.dir, from.name, to.dir, to.name);
    return failed < 0 ? fault_of(errno) : show(&to);
}

static enum fault delete_content(int folder, unsigned level);

static enum fault delete_entry(int folder, const char *name, unsigned level) {
    if (unlinkat(folder, name, 0) == 0 || errno == ENOENT) return FAULT_NONE;
    if (errno != EISDIR && errno != EPERM) return fault_of(errno);
    int error = errno, inner = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (inner < 0) return fault_of(errno == ENOTDIR || errno == ELOOP ? error : errno);
    struct stat st;
    enum fault fault = fstat(inner, &st) < 0 ? fault_of(errno) : is_root(&st) ? FAULT_BUSY : FAULT_NONE;
    if (fault)
        close(inner);
    else
        fault = delete_content(inner, level + 1);
    if (fault) return fault;
    if (unlinkat(folder, name, AT_REMOVEDIR) == 0 || errno == ENOENT) return FAULT_NONE;
    return fault_of(errno);
}

/* Takes the descriptor. Several passes: what is deleted while it is listed may hide what comes after it. */
static enum fault delete_content(int folder, unsigned level) {
    if (level > MAX_LEVELS) {
        close(folder);
        return FAULT_TOO_DEEP;
    }
    DIR *listing = fdopendir(folder);
    if (listing == NULL) {
        close(folder);
        return FAULT_UNKNOWN;
    }
    enum fault fault = FAULT_NONE;
    bool any = true;
    for (int pass = 0; pass < DELETE_PASSES && any && !fault; pass++) {
        any = false;
        rewinddir(listing);
        for (struct dirent *entry; !fault && (entry = next_entry(listing, &fault)) != NULL;) {
            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
            any = true;
            fault = delete_entry(dirfd(listing), entry->d_name, level);
        }
    }
    closedir(listing);
    return fault;
}

/* delete PATH empty|recursive: a link itself, never what it leads to; roots stay, with all that is in them */
enum fault files_delete(char **arguments) {
    struct place p;
    enum fault fault = place_find(arguments[0], LINK_KEEP, MISSING_REFUSE, &p);
    if (fault) return fault;
    if (is_root(&p.st)) return FAULT_BUSY;
    if (!S_ISDIR(p.st.st_mode)) return unlinkat(p.dir, p.name, 0) < 0 ? fault_of(errno) : FAULT_NONE;
    if (strcmp(arguments[1], "recursive") == 0) {
        int folder;
        fault = place_open_folder(&p, &folder);
        if (!fault) fault = delete_content(folder, 1);
        if (fault) return fault;
    }
    return unlinkat(p.dir, p.name, AT_REMOVEDIR) < 0 ? fault_of(errno) : FAULT_NONE;
}

/* The `limit` smallest names of a folder from `from` on, in the order of their bytes: a folder of any size costs the
 * memory of one page. */
struct names {
    char (*list)[NAME_BYTES];
    size_t count;
    bool more;
};

static int compare(const void *a, const void *b) { return strcmp(a, b); }

static void keep_smallest(struct names *n, size_t limit) {
    qsort(n->list, n->count, sizeof *n->list, compare);
    if (n->count <= limit) return;
    n->count = limit;
    n->more = true;
}

static enum fault read_names(int folder, const char *from, size_t limit, struct names *n) {
    DIR *listing = fdopendir(folder);
    if (listing == NULL) {
        close(folder);
        return FAULT_UNKNOWN;
    }
    size_t cap = 256, most = 2 * limit + 256;
    n->list = must_resize(NULL, cap * sizeof *n->list);
    enum fault fault = FAULT_NONE;
    for (struct dirent *entry; (entry = next_entry(listing, &fault)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (strcmp(entry->d_name, from) < 0 || strlen(entry->d_name) >= NAME_BYTES) continue;
        if (n->count == cap && cap < most) {
            cap = cap * 2 < most ? cap * 2 : most;
            n->list = must_resize(n->list, cap * sizeof *n->list);
        }
        if (n->count == cap) keep_smallest(n, limit);
        memcpy(n->list[n->count++], entry->d_name, strlen(entry->d_name) + 1);
    }
    closedir(listing);
    keep_smallest(n, limit);
    return fault;
}

struct listing {
    size_t left;       /* entries that may still be shown */
    size_t bytes_left; /* of their paths and targets; a page of long names is shorter */
    bool full;
    unsigned depth;
    char path[MAX_PATH_TEXT];
    char last[MAX_PATH_TEXT]; /* of what was shown, relative to where the listing began */
};

/* `after`: what is left of the cursor in this folder; "" from the beginning */
static enum fault list_folder(struct listing *l, int folder, unsigned level, size_t base, const char *after) {
    char from[NAME_BYTES] = "";
    size_t head = strcspn(after, "/");
    if (head >= sizeof from) {
        close(folder);
        return FAULT_BAD_INPUT;
    }
    memcpy(from, after, head);
    from[head] = 0;
    const char *rest = after[head] ? after + head + 1 : "";
    struct names names = {0};
    int inside = fcntl(folder, F_DUPFD_CLOEXEC, 3);
    if (inside < 0) {
        close(folder);
        return fault_of(errno);
    }
    enum fault fault = read_names(folder, from, l->left + 2, &names);
    size_t end = strlen(l->path);
    for (size_t i = 0; i < names.count && !fault && !l->full; i++) {
        const char *name = names.list[i];
        size_t len = strlen(name);
        if (end + len + 2 > sizeof l->path) {
            fault = FAULT_NAME_TOO_LONG;
            break;
        }
        snprintf(l->path + end, sizeof l->path - end, "%s%s", end > 1 ? "/" : "", name);
        bool resumed = head && strcmp(name, from) == 0; /* shown on an earlier page */
        if (!resumed) {
            if (l->left == 0 || l->bytes_left < 2 * MAX_PATH_TEXT) {
                l->full = true;
                break;
            }
            l->left--;
            l->bytes_left -= record_entry(inside, name, l->path);
            memcpy(l->last, l->path + base, strlen(l->path + base) + 1);
        }
        if (level >= l->depth) continue;
        int inner = openat(inside, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (inner >= 0) fault = list_folder(l, inner, level + 1, base, resumed ? rest : "");
        if (fault == FAULT_NOT_FOLDER) fault = FAULT_NONE;
    }
    if (names.more) l->full = true;
    l->path[end] = 0;
    free(names.list);
    close(inside);
    return fault;
}

/* list PATH DEPTH LIMIT AFTER: entries in the order of their names, a folder before what is in it; after a full page the
 * path to go on after. Folders that may not be read are shown without what is in them. */
enum fault files_list(char **arguments) {
    uint64_t depth, limit;
    if (!parse_number(arguments[1], 10, MAX_LIST_DEPTH, &depth) || depth == 0) return FAULT_BAD_INPUT;
    if (!parse_number(arguments[2], 10, MAX_LIST_ENTRIES, &limit) || limit == 0) return FAULT_BAD_INPUT;
    struct place p;
    enum fault fault = place_find(arguments[0], LINK_FOLLOW, MISSING_REFUSE, &p);
    int folder;
    if (!fault && (fault = place_open_folder(&p, &folder)) == FAULT_NONE) {
        static struct listing l;
        l.left = (size_t)limit;
        l.bytes_left = LIST_PAGE_BYTES;
        l.depth = (unsigned)depth;
        memcpy(l.path, p.path, strlen(p.path) + 1);
        size_t base = strlen(p.path) + (strlen(p.path) > 1);
        fault = list_folder(&l, folder, 1, base, arguments[3]);
        if (!fault && l.full) record_bytes(RECORD_MORE, 0, l.last);
    }
    return fault;
}
