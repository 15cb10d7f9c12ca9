/* Takes in a hostile archive. Every name is walked as a client's path is, with the destination as the only root, so that
 * neither `..`, nor an absolute name, nor a link that the archive itself made a moment ago leads outside. */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct tar_reader reader;
static struct tar_entry entry;
static enum fault input_fault;

enum { COUNT_FILES, COUNT_FOLDERS, COUNT_LINKS, COUNT_SKIPPED, COUNT_BYTES, COUNTS };
static uint64_t counts[COUNTS];

static bool read_input(void *context, uint8_t *data, size_t len, bool *end) {
    (void)context;
    for (size_t at = 0, got; at < len; at += got) {
        input_fault = input_read(data + at, len - at, &got);
        if (input_fault) return false;
        if (got == 0) {
            *end = at == 0;
            if (at) input_fault = FAULT_BAD_INPUT;
            return false;
        }
    }
    return true;
}

static enum fault fault_of_tar(enum tar_result result) {
    return result == TAR_FAILED ? input_fault : result == TAR_BAD ? FAULT_BAD_INPUT : FAULT_NONE;
}

static void set_time(int dir, const char *name) {
    struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = (time_t)entry.mtime}};
    utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW); /* a time that the file system does not know is no loss */
}

static enum fault clear_name(const struct place *p) {
    if (unlinkat(p->dir, p->name, 0) == 0 || errno == ENOENT) return FAULT_NONE;
    return errno == EPERM ? FAULT_IS_FOLDER : fault_of(errno);
}

static enum fault write_data(int fd) {
    for (;;) {
        size_t len;
        enum fault fault = fault_of_tar(tar_data(&reader, part, PART_BYTES, &len));
        if (fault || len == 0) return fault;
        counts[COUNT_BYTES] += len;
        for (size_t at = 0; at < len;) {
            ssize_t put = write(fd, part + at, len - at);
            if (put > 0)
                at += (size_t)put;
            else if (errno != EINTR)
                return fault_of(errno);
        }
    }
}

static enum fault make_file(const struct place *p) {
    enum fault fault = clear_name(p);
    if (fault) return fault;
    int fd = openat(p->dir, p->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return fault_of(errno);
    fault = write_data(fd);
    if (!fault && fchmod(fd, entry.mode & 0777) < 0) fault = fault_of(errno);
    struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = (time_t)entry.mtime}};
    if (!fault) futimens(fd, times);
    if (close(fd) < 0 && !fault) fault = fault_of(errno);
    if (fault) unlinkat(p->dir, p->name, 0);
    counts[COUNT_FILES]++;
    return fault;
}

/* The owner keeps the right to look into it and to write, so that what comes later in the archive finds its place. */
static enum fault make_folder(const struct place *p) {
    counts[COUNT_FOLDERS]++;
    if (strcmp(p->name, ".") == 0 || (p->exists && S_ISDIR(p->st.st_mode))) return FAULT_NONE;
    if (p->exists) {
        enum fault fault = clear_name(p);
        if (fault) return fault;
    }
    return mkdirat(p->dir, p->name, (entry.mode & 0777) | 0700) < 0 ? fault_of(errno) : FAULT_NONE;
}

/* Kept word for word, wherever it points: nothing here follows it there. */
static enum fault make_symlink(const struct place *p) {
    enum fault fault = clear_name(p);
    if (fault) return fault;
    if (symlinkat(entry.link, p->dir, p->name) < 0) return errno == ENOENT ? FAULT_BAD_INPUT : fault_of(errno);
    set_time(p->dir, p->name);
    counts[COUNT_LINKS]++;
    return FAULT_NONE;
}

static enum fault make_hard_link(const struct place *p, const struct place *target) {
    if (!S_ISREG(target->st.st_mode)) return FAULT_NOT_REGULAR;
    if (p->exists && p->st.st_dev == target->st.st_dev && p->st.st_ino == target->st.st_ino) return FAULT_NONE;
    enum fault fault = clear_name(p);
    if (fault) return fault;
    if (linkat(target->dir, target->name, p->dir, p->name, 0) < 0) return fault_of(errno);
    counts[COUNT_LINKS]++;
    return FAULT_NONE;
}

static enum fault make_entry(void) {
    static struct place p, target;
    bool folder = entry.type == '5';
    if (strchr("0125", entry.type) == NULL) {
        counts[COUNT_SKIPPED]++;
        return FAULT_NONE;
    }
    if (entry.path[0] == '/') return FAULT_ESCAPE;
    enum fault fault = place_find(entry.path, folder ? LINK_FOLLOW : LINK_KEEP, MISSING_MAKE, &p);
    if (fault) return fault;
    if (!folder && p.exists && S_ISDIR(p.st.st_mode)) {
        fault = FAULT_IS_FOLDER;
    } else if (entry.type == '0') {
        fault = make_file(&p);
    } else if (folder) {
        fault = make_folder(&p);
    } else if (entry.type == '2') {
        fault = make_symlink(&p);
    } else {
        fault = entry.link[0] == '/' ? FAULT_ESCAPE : place_find(entry.link, LINK_KEEP, MISSING_REFUSE, &target);
        if (!fault) {
            fault = make_hard_link(&p, &target);
            place_close(&target);
        }
    }
    place_close(&p);
    return fault;
}

static enum fault drain_input(void) {
    for (;;) {
        size_t len;
        enum fault fault = input_read(part, PART_BYTES, &len);
        if (fault || len == 0) return fault;
    }
}

/* unpack PATH: into a folder, which is made where it is missing; what is in the way of an entry is replaced, a folder is
 * not. Stops at the first entry that cannot be made; its name is told then, and what came before it stays. */
enum fault files_unpack(char **arguments) {
    struct place base;
    enum fault fault = place_find(arguments[0], LINK_FOLLOW, MISSING_MAKE, &base);
    if (fault) return fault;
    if (!base.exists && mkdirat(base.dir, base.name, 0755) < 0 && errno != EEXIST) return fault_of(errno);
    if ((fault = place_root(&base)) != FAULT_NONE) return fault;
    reader.read = read_input;
    for (;;) {
        enum tar_result result = tar_next(&reader, &entry);
        if (result != TAR_ENTRY) {
            fault = fault_of_tar(result);
            break;
        }
        if ((fault = make_entry()) != FAULT_NONE) {
            record_bytes(RECORD_EVENT, 0, entry.path);
            break;
        }
    }
    if (!fault) fault = drain_input(); /* zeros, which GNU tar fills its last record with */
    if (!fault) record_counts(counts, COUNTS);
    return fault;
}
