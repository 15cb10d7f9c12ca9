#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { HARD_LINKS = 16384, LINK_PATHS_BYTES = 4 * 1024 * 1024 };

/* What has several names is stored once. When the table is full the rest is stored as often as it is found. */
static struct hard_link {
    dev_t device;
    ino_t inode;
    uint32_t path; /* where it begins in link_paths; 0: free */
} hard_links[HARD_LINKS];
static char link_paths[LINK_PATHS_BYTES];
static size_t link_paths_len = 1, hard_link_count;

static struct tar_entry entry;
static uint8_t head[TAR_HEAD_MAX];

static const char *earlier_name(const struct stat *st, const char *path) {
    size_t at = (size_t)(st->st_ino * 0x9e3779b97f4a7c15ULL >> 32) % HARD_LINKS;
    for (; hard_links[at].path; at = (at + 1) % HARD_LINKS)
        if (hard_links[at].inode == st->st_ino && hard_links[at].device == st->st_dev) return link_paths + hard_links[at].path;
    size_t len = strlen(path) + 1;
    if (hard_link_count >= HARD_LINKS / 2 || link_paths_len + len > LINK_PATHS_BYTES) return NULL;
    hard_links[at] = (struct hard_link){st->st_dev, st->st_ino, (uint32_t)link_paths_len};
    memcpy(link_paths + link_paths_len, path, len);
    link_paths_len += len;
    hard_link_count++;
    return NULL;
}

static void begin_entry(char type, const struct stat *st, const char *path, const char *link) {
    entry.type = type;
    entry.mode = st->st_mode & 07777;
    entry.size = type == '0' ? (uint64_t)st->st_size : 0;
    entry.mtime = st->st_mtim.tv_sec;
    snprintf(entry.path, sizeof entry.path, "%s%s", path, type == '5' ? "/" : "");
    snprintf(entry.link, sizeof entry.link, "%s", link);
    output_write(head, tar_head(&entry, head));
}

static void pad(uint64_t len) {
    memset(part, 0, len < PART_BYTES ? (size_t)len : PART_BYTES);
    while (len > 0) {
        size_t now = len < PART_BYTES ? (size_t)len : PART_BYTES;
        output_write(part, now);
        len -= now;
    }
}

/* A file that shrinks meanwhile is filled up with zeros, as its size is said before; one that grows is cut. */
static enum fault pack_file(int fd, const struct stat *st, const char *path) {
    const char *link = st->st_nlink > 1 ? earlier_name(st, path) : NULL;
    begin_entry(link ? '1' : '0', st, path, link ? link : "");
    if (link) return FAULT_NONE;
    uint64_t left = (uint64_t)st->st_size;
    while (left > 0) {
        ssize_t got = read(fd, part, left < PART_BYTES ? (size_t)left : PART_BYTES);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fault_of(errno); /* filled up, the archive would look whole */
        if (got == 0) break;
        output_write(part, (size_t)got);
        left -= (uint64_t)got;
    }
    pad(left + tar_padding((uint64_t)st->st_size));
    return FAULT_NONE;
}

/* What went away while the archive was made is left out; what cannot be looked at breaks it off. */
static enum fault unless_gone(int error) {
    return error == ENOENT || error == ENOTDIR || error == ELOOP ? FAULT_NONE : fault_of(error);
}

static enum fault pack_link(int dir, const char *name, const struct stat *st, const char *path) {
    static char target[MAX_PATH_TEXT];
    ssize_t len = readlinkat(dir, name, target, sizeof target - 1);
    if (len < 0) return errno == EINVAL ? FAULT_NONE : unless_gone(errno); /* EINVAL: it is no link any more */
    target[len] = 0;
    begin_entry('2', st, path, target);
    return FAULT_NONE;
}

static enum fault pack_folder(int folder, const char *path, unsigned level);

static enum fault pack_entry(int dir, const char *name, const char *path, unsigned level) {
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0) return unless_gone(errno);
    if (S_ISLNK(st.st_mode)) return pack_link(dir, name, &st, path);
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) return FAULT_NONE; /* devices, pipes and sockets are passed over */
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return unless_gone(errno);
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        begin_entry('5', &st, path, "");
        return pack_folder(fd, path, level + 1);
    }
    enum fault fault = S_ISREG(st.st_mode) ? pack_file(fd, &st, path) : FAULT_NONE;
    close(fd);
    return fault;
}

/* Takes the descriptor. */
static enum fault pack_folder(int folder, const char *path, unsigned level) {
    DIR *listing = level > MAX_LEVELS ? NULL : fdopendir(folder);
    if (listing == NULL) {
        close(folder);
        return level > MAX_LEVELS ? FAULT_TOO_DEEP : FAULT_UNKNOWN;
    }
    enum fault fault = FAULT_NONE;
    for (struct dirent *found; !fault && (found = next_entry(listing, &fault)) != NULL;) {
        char inner[MAX_PATH_TEXT];
        if (strcmp(found->d_name, ".") == 0 || strcmp(found->d_name, "..") == 0) continue;
        int len = snprintf(inner, sizeof inner - 2, "%s%s%s", path, *path ? "/" : "", found->d_name);
        fault = len < 0 || (size_t)len >= sizeof inner - 2 ? FAULT_NAME_TOO_LONG
                                                           : pack_entry(dirfd(listing), found->d_name, inner, level);
    }
    closedir(listing);
    return fault;
}

/* pack PATH: a folder's content, its names relative to it, or one file. The entry of PATH comes first, as a record, so
 * that what fails before the first byte can still be refused. */
enum fault files_pack(char **arguments) {
    struct place p;
    enum fault fault = place_find(arguments[0], LINK_FOLLOW, MISSING_REFUSE, &p);
    if (fault) return fault;
    if (S_ISDIR(p.st.st_mode)) {
        int folder;
        if ((fault = place_open_folder(&p, &folder)) != FAULT_NONE) return fault;
        record_stat(&p.st, p.path, "");
        fault = pack_folder(folder, "", 1);
    } else if (S_ISREG(p.st.st_mode)) {
        record_stat(&p.st, p.path, "");
        fault = pack_entry(p.dir, p.name, p.name, 1);
    } else {
        return FAULT_NOT_REGULAR;
    }
    if (!fault) pad(2 * TAR_BLOCK);
    return fault;
}
