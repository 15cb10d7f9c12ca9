#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint8_t part[PART_BYTES];

static uint32_t left_of_part;
static bool ended;

enum fault fault_of(int error) {
    switch (error) {
    case ENOENT: return FAULT_NOT_FOUND;
    case EISDIR: return FAULT_IS_FOLDER;
    case ENOTDIR: return FAULT_NOT_FOLDER;
    case EACCES:
    case EPERM: return FAULT_DENIED;
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return FAULT_NO_SPACE;
    case EEXIST: return FAULT_EXISTS;
    case ENOTEMPTY: return FAULT_NOT_EMPTY;
    case ELOOP: return FAULT_CHANGED; /* it was no link when it was looked at */
    case EROFS: return FAULT_READ_ONLY;
    case ENAMETOOLONG: return FAULT_NAME_TOO_LONG;
    case EXDEV: return FAULT_OTHER_FILE_SYSTEM;
    case EBUSY: return FAULT_BUSY;
    case ENXIO: return FAULT_NOT_REGULAR;
    case EINVAL: return FAULT_BAD_INPUT;
    default: return FAULT_UNKNOWN;
    }
}

void output_write(const void *data, size_t len) {
    const uint8_t *at = data;
    while (len > 0) {
        ssize_t put = write(1, at, len);
        if (put > 0) {
            at += put;
            len -= (size_t)put;
        } else if (errno != EINTR) {
            _exit(FAULT_CUT);
        }
    }
}

/* Bytes of the pipe that were read and not taken yet: it is emptied in large draughts, however small its parts are. */
static uint8_t inbox[PART_BYTES];
static size_t inbox_at, inbox_len;

static enum fault fill_inbox(void) {
    while (inbox_at == inbox_len) {
        ssize_t got = read(0, inbox, sizeof inbox);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return FAULT_CUT;
        inbox_at = 0;
        inbox_len = (size_t)got;
    }
    return FAULT_NONE;
}

static enum fault next_part(void) {
    for (unsigned i = 0; i < 4; i++) {
        enum fault fault = fill_inbox();
        if (fault) return fault;
        left_of_part = left_of_part << 8 | inbox[inbox_at++];
    }
    ended = left_of_part == 0;
    return FAULT_NONE;
}

enum fault input_read(void *data, size_t want, size_t *got) {
    *got = 0;
    enum fault fault = ended || left_of_part ? FAULT_NONE : next_part();
    if (fault || ended) return fault;
    if ((fault = fill_inbox()) != FAULT_NONE) return fault;
    size_t len = inbox_len - inbox_at;
    if (len > want) len = want;
    if (len > left_of_part) len = left_of_part;
    memcpy(data, inbox + inbox_at, len);
    inbox_at += len;
    left_of_part -= (uint32_t)len;
    *got = len;
    return FAULT_NONE;
}

enum fault input_exact(void *data, size_t len) {
    for (size_t at = 0, got; at < len; at += got) {
        enum fault fault = input_read((uint8_t *)data + at, len - at, &got);
        if (fault) return fault;
        if (got == 0) return FAULT_BAD_INPUT;
    }
    return FAULT_NONE;
}

static uint8_t *put_number(uint8_t *at, uint64_t value, unsigned bytes) {
    while (bytes-- > 0) *at++ = (uint8_t)(value >> 8 * bytes);
    return at;
}

static uint8_t *put_text(uint8_t *at, const char *text) {
    size_t len = strnlen(text, MAX_PATH_TEXT);
    at = put_number(at, len, 4);
    memcpy(at, text, len);
    return at + len;
}

static void write_record(uint8_t *begin, const uint8_t *end) {
    put_number(begin, (uint64_t)(end - begin) - 4, 4);
    output_write(begin, (size_t)(end - begin));
}

void record_stat(const struct stat *st, const char *path, const char *target) {
    uint8_t record[64 + 2 * MAX_PATH_TEXT], *at = record + 4;
    uint8_t type = S_ISREG(st->st_mode) ? 1 : S_ISDIR(st->st_mode) ? 2 : S_ISLNK(st->st_mode) ? 3 : 4;
    *at++ = RECORD_ENTRY;
    *at++ = type;
    at = put_number(at, st->st_mode & 07777, 2);
    at = put_number(at, type == 1 ? (uint64_t)st->st_size : 0, 8);
    at = put_number(at, (uint64_t)st->st_mtim.tv_sec, 8);
    at = put_number(at, (uint64_t)st->st_mtim.tv_nsec, 4);
    at = put_number(at, (uint64_t)st->st_ino, 8);
    at = put_text(at, path);
    at = put_text(at, target);
    write_record(record, at);
}

size_t record_entry(int dir, const char *name, const char *path) {
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0) return 0;
    char target[MAX_PATH_TEXT] = "";
    if (S_ISLNK(st.st_mode)) {
        ssize_t len = readlinkat(dir, name, target, sizeof target - 1);
        if (len < 0) return 0;
        target[len] = 0;
    }
    record_stat(&st, path, target);
    return strlen(path) + strlen(target);
}

void record_bytes(enum record kind, uint8_t detail, const char *text) {
    uint8_t record[16 + MAX_PATH_TEXT], *at = record + 4;
    *at++ = (uint8_t)kind;
    *at++ = detail;
    write_record(record, put_text(at, text));
}

void record_counts(const uint64_t *counts, size_t count) {
    uint8_t record[128], *at = record + 4;
    *at++ = RECORD_COUNTS;
    for (size_t i = 0; i < count; i++) at = put_number(at, counts[i], 8);
    write_record(record, at);
}

bool parse_number(const char *text, unsigned base, uint64_t max, uint64_t *value) {
    uint64_t sum = 0;
    if (*text == 0) return false;
    for (; *text; text++) {
        if (*text < '0' || *text >= (char)('0' + base)) return false;
        if (sum > (UINT64_MAX - 9) / base) return false;
        sum = sum * base + (uint64_t)(*text - '0');
    }
    *value = sum;
    return sum <= max;
}
