#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_LOOKS = 16 };

static uint64_t load_number(const uint8_t *at) {
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value = value << 8 | at[i];
    return value;
}

/* The check comes after the open, on the descriptor: what lies under a name may be changed at any moment. */
static enum fault open_regular(const char *path, struct place *p, int *fd) {
    for (int look = 0; look < MAX_LOOKS; look++) {
        enum fault fault = place_find(path, LINK_FOLLOW, MISSING_REFUSE, p);
        if (fault) return fault;
        if (S_ISDIR(p->st.st_mode)) return FAULT_IS_FOLDER;
        if (!S_ISREG(p->st.st_mode)) return FAULT_NOT_REGULAR;
        *fd = openat(p->dir, p->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (*fd < 0 && errno != ELOOP && errno != ENOENT) return fault_of(errno);
        if (*fd >= 0 && fstat(*fd, &p->st) == 0 && S_ISREG(p->st.st_mode)) return FAULT_NONE;
        if (*fd >= 0) close(*fd);
        place_close(p);
    }
    return FAULT_CHANGED;
}

/* read PATH: the entry; then, once 16 bytes (offset, length) have come, exactly that many bytes. */
enum fault files_read(char **arguments) {
    struct place p;
    int fd = -1;
    enum fault fault = open_regular(arguments[0], &p, &fd);
    if (fault) return fault;
    record_stat(&p.st, p.path, "");
    uint8_t range[16];
    if ((fault = input_exact(range, sizeof range)) != FAULT_NONE) return fault;
    uint64_t offset = load_number(range), left = load_number(range + 8);
    if (offset > INT64_MAX || left > INT64_MAX) return FAULT_BAD_INPUT;
    posix_fadvise(fd, (off_t)offset, (off_t)left, POSIX_FADV_SEQUENTIAL);
    while (left > 0) {
        ssize_t got = pread(fd, part, left < PART_BYTES ? (size_t)left : PART_BYTES, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fault_of(errno);
        if (got == 0) return FAULT_CHANGED;
        output_write(part, (size_t)got);
        offset += (uint64_t)got;
        left -= (uint64_t)got;
    }
    return FAULT_NONE;
}

static enum fault store_input(int fd) {
    for (;;) {
        size_t len;
        enum fault fault = input_read(part, PART_BYTES, &len);
        if (fault || len == 0) return fault;
        for (size_t at = 0; at < len;) {
            ssize_t put = write(fd, part + at, len - at);
            if (put > 0)
                at += (size_t)put;
            else if (errno != EINTR)
                return fault_of(errno);
        }
    }
}

/* write PATH MODE (octal; empty: as it was, 0644 for a new one): beside the target under another name, then renamed. */
enum fault files_write(char **arguments) {
    uint64_t mode = 0644;
    bool mode_given = arguments[1][0] != 0;
    if (mode_given && !parse_number(arguments[1], 8, 0777, &mode)) return FAULT_BAD_INPUT;
    struct place p;
    enum fault fault = place_find(arguments[0], LINK_FOLLOW, MISSING_MAKE, &p);
    if (fault) return fault;
    if (p.exists && S_ISDIR(p.st.st_mode)) return FAULT_IS_FOLDER;
    if (p.exists && !S_ISREG(p.st.st_mode)) return FAULT_NOT_REGULAR;
    if (p.exists && !mode_given) mode = p.st.st_mode & 0777;
    char temporary[NAME_BYTES];
    if (!name_temporary(temporary, sizeof temporary)) return FAULT_UNKNOWN;
    int fd = openat(p.dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return fault_of(errno);
    fault = store_input(fd);
    if (!fault && (fchmod(fd, (mode_t)mode) < 0 || fsync(fd) < 0)) fault = fault_of(errno);
    struct stat st;
    if (!fault && fstat(fd, &st) < 0) fault = fault_of(errno);
    if (close(fd) < 0 && !fault) fault = fault_of(errno); /* a network file system may keep the bad news until here */
    if (!fault && renameat(p.dir, temporary, p.dir, p.name) < 0) fault = fault_of(errno);
    if (fault) {
        unlinkat(p.dir, temporary, 0);
        return fault;
    }
    record_stat(&st, p.path, "");
    return FAULT_NONE;
}
