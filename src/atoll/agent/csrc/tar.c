#include "tar.h"

#include <stdio.h>
#include <string.h>

enum { AT_MODE = 100, AT_UID = 108, AT_GID = 116, AT_SIZE = 124, AT_MTIME = 136, AT_SUM = 148, AT_TYPE = 156, AT_LINK = 157,
       AT_MAGIC = 257, AT_PREFIX = 345, NAME_FIELD = 100, PREFIX_FIELD = 155, OWNER = 1001 };

#define OCTAL_SIZE_MAX 077777777777ULL

static unsigned checksum(const uint8_t *block) {
    unsigned sum = 0;
    for (size_t i = 0; i < TAR_BLOCK; i++) sum += i >= AT_SUM && i < AT_SUM + 8 ? ' ' : block[i];
    return sum;
}

/* Octal digits, or GNU's binary form, whose first byte has the highest bit set. */
static bool read_number(const uint8_t *field, size_t len, int64_t *value) {
    uint64_t sum = 0;
    size_t i = 0;
    if (field[0] & 0x80) {
        bool negative = field[0] == 0xff;
        sum = negative ? UINT64_MAX : field[0] & 0x3f;
        for (i = 1; i < len; i++) {
            if (len - i > 8 && field[i] != (negative ? 0xff : 0)) return false;
            sum = sum << 8 | field[i];
        }
        *value = (int64_t)sum;
        return negative == (*value < 0);
    }
    while (i < len && field[i] == ' ') i++;
    for (; i < len && field[i] >= '0' && field[i] <= '7'; i++) sum = sum * 8 + (uint64_t)(field[i] - '0');
    *value = (int64_t)sum;
    return (i == len || field[i] == 0 || field[i] == ' ') && sum <= INT64_MAX;
}

static void copy_field(char *to, const uint8_t *field, size_t len) {
    size_t used = strnlen((const char *)field, len);
    memcpy(to, field, used);
    to[used] = 0;
}

static bool read_header(const uint8_t *block, struct tar_entry *e) {
    int64_t mode, size, sum;
    if (!read_number(block + AT_SUM, 8, &sum) || sum != (int64_t)checksum(block)) return false;
    if (!read_number(block + AT_MODE, 8, &mode) || !read_number(block + AT_SIZE, 12, &size) || size < 0) return false;
    if (!read_number(block + AT_MTIME, 12, &e->mtime)) return false;
    e->type = block[AT_TYPE] == 0 || block[AT_TYPE] == '7' ? '0' : (char)block[AT_TYPE];
    e->mode = (uint32_t)mode & 07777;
    e->size = (uint64_t)size;
    copy_field(e->link, block + AT_LINK, NAME_FIELD);
    size_t prefix = 0;
    if (memcmp(block + AT_MAGIC, "ustar\0", 6) == 0 && block[AT_PREFIX]) {
        copy_field(e->path, block + AT_PREFIX, PREFIX_FIELD);
        prefix = strlen(e->path);
        e->path[prefix++] = '/';
    }
    copy_field(e->path + prefix, block, NAME_FIELD);
    return true;
}

static enum tar_result read_block(struct tar_reader *r, uint8_t *block) {
    bool end = false;
    if (r->read(r->context, block, TAR_BLOCK, &end)) return TAR_ENTRY;
    return end ? TAR_END : TAR_FAILED;
}

static enum tar_result skip(struct tar_reader *r, uint64_t len) {
    uint8_t block[8 * TAR_BLOCK];
    while (len > 0) {
        size_t now = len < sizeof block ? (size_t)len : sizeof block;
        bool end = false;
        if (!r->read(r->context, block, now, &end)) return end ? TAR_BAD : TAR_FAILED;
        len -= now;
    }
    return TAR_ENTRY;
}

/* A header's own bytes, ended by NUL, and what pads them. */
static enum tar_result read_extra(struct tar_reader *r, uint64_t size) {
    if (size >= TAR_PAX_BYTES) return TAR_BAD;
    bool end = false;
    if (size && !r->read(r->context, (uint8_t *)r->pax, (size_t)size, &end)) return end ? TAR_BAD : TAR_FAILED;
    r->pax[size] = 0;
    return skip(r, tar_padding(size));
}

struct extra {
    bool has_path, has_link, has_size, has_mtime;
    char path[TAR_PATH_BYTES], link[TAR_PATH_BYTES];
    uint64_t size;
    int64_t mtime;
};

static bool keep_text(char *to, bool *has, const char *value, size_t len) {
    if (len == 0 || len >= TAR_PATH_BYTES || memchr(value, 0, len)) return false;
    memcpy(to, value, len);
    to[len] = 0;
    *has = true;
    return true;
}

static bool keep_size(struct extra *x, const char *value, size_t len) {
    uint64_t size = 0;
    if (len == 0 || len > 18) return false;
    for (size_t i = 0; i < len; i++) {
        if (value[i] < '0' || value[i] > '9') return false;
        size = size * 10 + (uint64_t)(value[i] - '0');
    }
    x->size = size;
    x->has_size = true;
    return true;
}

static void keep_mtime(struct extra *x, const char *value, size_t len) {
    int64_t seconds = 0;
    bool negative = len > 0 && value[0] == '-';
    for (size_t i = negative; i < len && i < 14 && value[i] >= '0' && value[i] <= '9'; i++)
        seconds = seconds * 10 + (value[i] - '0');
    x->mtime = negative ? -seconds : seconds;
    x->has_mtime = true;
}

static bool is_key(const char *key, size_t len, const char *wanted) {
    return strlen(wanted) == len && memcmp(key, wanted, len) == 0;
}

/* Records `LENGTH KEY=VALUE\n`, the length counting all of it. */
static bool read_pax(struct extra *x, const char *data, size_t size) {
    while (size > 0) {
        size_t len = 0, at = 0;
        while (at < size && at < 6 && data[at] >= '0' && data[at] <= '9') len = len * 10 + (size_t)(data[at++] - '0');
        if (at == 0 || at >= size || data[at] != ' ' || len <= at + 1 || len > size || data[len - 1] != '\n') return false;
        const char *key = data + at + 1, *stop = data + len - 1, *equals = memchr(key, '=', (size_t)(stop - key));
        if (equals == NULL) return false;
        size_t key_len = (size_t)(equals - key), value_len = (size_t)(stop - equals - 1);
        if (is_key(key, key_len, "path") && !keep_text(x->path, &x->has_path, equals + 1, value_len)) return false;
        if (is_key(key, key_len, "linkpath") && !keep_text(x->link, &x->has_link, equals + 1, value_len)) return false;
        if (is_key(key, key_len, "size") && !keep_size(x, equals + 1, value_len)) return false;
        if (is_key(key, key_len, "mtime")) keep_mtime(x, equals + 1, value_len);
        if (key_len >= 11 && memcmp(key, "GNU.sparse.", 11) == 0) return false; /* its bytes are not the file's */
        data += len;
        size -= len;
    }
    return true;
}

enum tar_result tar_next(struct tar_reader *r, struct tar_entry *e) {
    static struct extra extra;
    extra.has_path = extra.has_link = extra.has_size = extra.has_mtime = false;
    enum tar_result result = skip(r, r->left);
    if (result == TAR_ENTRY) result = skip(r, r->padding);
    r->left = r->padding = 0;
    while (result == TAR_ENTRY) {
        uint8_t block[TAR_BLOCK];
        static const uint8_t zeros[TAR_BLOCK];
        if ((result = read_block(r, block)) != TAR_ENTRY) return result;
        if (memcmp(block, zeros, TAR_BLOCK) == 0) return TAR_END;
        if (!read_header(block, e)) return TAR_BAD;
        if (strchr("xgLK", e->type) == NULL) break;
        if ((result = read_extra(r, e->size)) != TAR_ENTRY) return result;
        size_t len = (size_t)e->size;
        if (e->type == 'x' && !read_pax(&extra, r->pax, len)) return TAR_BAD;
        if (e->type == 'L' && !keep_text(extra.path, &extra.has_path, r->pax, strlen(r->pax))) return TAR_BAD;
        if (e->type == 'K' && !keep_text(extra.link, &extra.has_link, r->pax, strlen(r->pax))) return TAR_BAD;
    }
    if (result != TAR_ENTRY) return result;
    if (e->type == 'S') return TAR_BAD; /* GNU's sparse files: a part of their bytes */
    if (extra.has_path) memcpy(e->path, extra.path, strlen(extra.path) + 1);
    if (extra.has_link) memcpy(e->link, extra.link, strlen(extra.link) + 1);
    if (extra.has_size) e->size = extra.size;
    if (extra.has_mtime) e->mtime = extra.mtime;
    if (e->type != '0' && strchr("123456", e->type)) e->size = 0; /* links, devices and folders have no bytes, whatever is said */
    r->left = e->size;
    r->padding = (unsigned)tar_padding(e->size);
    return TAR_ENTRY;
}

enum tar_result tar_data(struct tar_reader *r, uint8_t *data, size_t want, size_t *got) {
    *got = r->left < want ? (size_t)r->left : want;
    bool end = false;
    if (*got && !r->read(r->context, data, *got, &end)) return end ? TAR_BAD : TAR_FAILED;
    r->left -= *got;
    return TAR_ENTRY;
}

static void put_octal(uint8_t *field, size_t len, uint64_t value) {
    field[len - 1] = 0;
    for (size_t i = len - 1; i-- > 0; value /= 8) field[i] = (uint8_t)('0' + value % 8);
}

static void put_block(uint8_t *block, char type, const char *name, const char *link, uint64_t size, const struct tar_entry *e) {
    memset(block, 0, TAR_BLOCK);
    memcpy(block, name, strnlen(name, NAME_FIELD));
    memcpy(block + AT_LINK, link, strnlen(link, NAME_FIELD));
    put_octal(block + AT_MODE, 8, e->mode);
    put_octal(block + AT_UID, 8, OWNER);
    put_octal(block + AT_GID, 8, OWNER);
    put_octal(block + AT_SIZE, 12, size);
    put_octal(block + AT_MTIME, 12, e->mtime > 0 && (uint64_t)e->mtime <= OCTAL_SIZE_MAX ? (uint64_t)e->mtime : 0);
    block[AT_TYPE] = (uint8_t)type;
    memcpy(block + AT_MAGIC, "ustar\00000", 8);
    put_octal(block + AT_SUM, 7, checksum(block));
    block[AT_SUM + 7] = ' ';
}

static size_t put_record(char *at, const char *key, const char *value) {
    size_t body = strlen(key) + strlen(value) + 3, len = body + 1; /* blank, equals, line end */
    for (size_t digits = 1, limit = 10; len >= limit || len != body + digits; digits++, limit *= 10) len = body + digits + 1;
    return (size_t)sprintf(at, "%zu %s=%s\n", len, key, value);
}

size_t tar_head(const struct tar_entry *e, uint8_t *head) {
    char *extra = (char *)head + TAR_BLOCK, number[24];
    size_t len = 0;
    if (strlen(e->path) > NAME_FIELD) len += put_record(extra + len, "path", e->path);
    if (strlen(e->link) > NAME_FIELD) len += put_record(extra + len, "linkpath", e->link);
    if (e->size > OCTAL_SIZE_MAX) {
        snprintf(number, sizeof number, "%llu", (unsigned long long)e->size);
        len += put_record(extra + len, "size", number);
    }
    size_t total = 0;
    if (len) {
        put_block(head, 'x', "././@PaxHeader", "", len, e);
        memset(extra + len, 0, tar_padding(len));
        total = TAR_BLOCK + len + tar_padding(len);
    }
    put_block(head + total, e->type, e->path, e->link, e->size > OCTAL_SIZE_MAX ? 0 : e->size, e);
    return total + TAR_BLOCK;
}
