#include "request.h"

#include <stdlib.h>
#include <string.h>

struct counted {
    uint32_t items;
    size_t chars;
};

/* Looks over a list without keeping it, so that one allocation holds all lists of the request. */
static struct counted count_list(struct cursor *c) {
    struct counted total = {take_u32(c), 0};
    if (total.items > MAX_LIST_ITEMS) c->bad = true;
    for (uint32_t i = 0; i < total.items && !c->bad; i++) {
        struct span item = take_bytes(c, MAX_ITEM_BYTES);
        if (item.len && memchr(item.data, 0, item.len)) c->bad = true;
        total.chars += item.len + (size_t)1;
    }
    return total;
}

static char *copy_text(char **chars, struct span item) {
    char *text = *chars;
    if (item.len) memcpy(text, item.data, item.len);
    text[item.len] = 0;
    *chars += item.len + 1;
    return text;
}

static char **copy_list(struct cursor *c, char ***pointers, char **chars) {
    char **list = *pointers;
    uint32_t items = take_u32(c);
    for (uint32_t i = 0; i < items; i++) list[i] = copy_text(chars, take_bytes(c, MAX_ITEM_BYTES));
    list[items] = NULL;
    *pointers += items + 1;
    return list;
}

static const char *check_start(const struct request *r) {
    if (r->argv[0] == NULL) return "The command is empty.";
    if (r->argv[0][0] == 0) return "The program has no name.";
    if (r->flags & ~(uint32_t)(FLAG_STDIN | FLAG_PTY)) return "Unknown flags.";
    if (r->flags & FLAG_PTY) {
        if (r->rows < 1 || r->cols < 1 || r->rows > MAX_TERMINAL_SIDE || r->cols > MAX_TERMINAL_SIDE)
            return "A terminal has 1 to 4096 rows and columns.";
        if (r->type == REQ_RUN) return "A terminal needs START.";
    }
    if (r->type == REQ_RUN && (r->flags & FLAG_STDIN)) return "Standard input needs START.";
    for (char **entry = r->env; *entry; entry++) {
        const char *equals = strchr(*entry, '=');
        if (equals == NULL || equals == *entry) return "An environment variable needs a name.";
    }
    return NULL;
}

static const char *decode_start(struct request *r, struct cursor *c) {
    r->flags = take_u32(c);
    r->rows = take_u16(c);
    r->cols = take_u16(c);
    r->timeout_ms = take_u64(c);
    struct cursor lists = *c;
    struct counted argv = count_list(c);
    struct span cwd = take_bytes(c, MAX_PATH_BYTES);
    if (cwd.len && memchr(cwd.data, 0, cwd.len)) c->bad = true;
    struct counted env = count_list(c);
    if (r->type == REQ_RUN) r->capture = take_u32(c);
    if (c->bad) return NULL;

    size_t pointers = (size_t)argv.items + env.items + 2;
    r->arena = must_alloc(pointers * sizeof(char *) + argv.chars + env.chars + cwd.len + 1);
    char **next_pointer = r->arena;
    char *next_char = (char *)(next_pointer + pointers);
    r->argv = copy_list(&lists, &next_pointer, &next_char);
    struct span directory = take_bytes(&lists, MAX_PATH_BYTES);
    if (directory.len) r->cwd = copy_text(&next_char, directory);
    r->env = copy_list(&lists, &next_pointer, &next_char);
    if (r->capture > MAX_CAPTURE_BYTES) r->capture = MAX_CAPTURE_BYTES;
    return check_start(r);
}

static const char *decode_open(struct request *r, struct cursor *c) {
    r->kind = take_u8(c);
    r->credit = take_u32(c);
    if (r->kind == STREAM_PORT) {
        r->port = take_u16(c);
        return r->port == 0 && !c->bad ? "There is no such port." : NULL;
    }
    if (r->kind != STREAM_FILES) return "There is no such stream.";
    struct cursor lists = *c;
    struct counted arguments = count_list(c);
    if (c->bad) return NULL;
    r->arena = must_alloc(((size_t)arguments.items + 1) * sizeof(char *) + arguments.chars);
    char **next_pointer = r->arena;
    char *next_char = (char *)(next_pointer + arguments.items + 1);
    r->argv = copy_list(&lists, &next_pointer, &next_char);
    return NULL;
}

static const char *decode_body(struct request *r, struct cursor *c) {
    switch (r->type) {
    case REQ_OPEN:
        return decode_open(r, c);
    case REQ_DATA:
        r->data = take_raw(c, (uint32_t)(c->end - c->at));
        return r->data.len == 0 || r->data.len > STREAM_BYTES_PER_FRAME ? "A part of a stream has 1 to 131072 bytes." : NULL;
    case REQ_CREDIT:
        r->credit = take_u32(c);
        return NULL;
    case REQ_FINISH:
    case REQ_CLOSE:
    case REQ_QUIET:
    case REQ_RELEASE:
        return NULL;
    case REQ_HOLD:
        r->max_ms = take_u32(c);
        return NULL;
    case REQ_HELLO:
        r->epoch = take_u32(c);
        return NULL;
    case REQ_STOP:
        r->grace_ms = take_u32(c);
        return NULL;
    case REQ_OOM:
    case REQ_LIST:
    case REQ_STATS:
        return NULL;
    default:
        break;
    }
    struct span execution = take_raw(c, EXECUTION_ID_BYTES);
    if (execution.data == NULL) return NULL;
    memcpy(r->execution, execution.data, EXECUTION_ID_BYTES);
    switch (r->type) {
    case REQ_START:
    case REQ_RUN:
        return decode_start(r, c);
    case REQ_READ:
        r->from = take_u64(c);
        r->max_bytes = take_u32(c);
        r->wait_ms = take_u32(c);
        if (r->max_bytes > MAX_READ_BYTES) r->max_bytes = MAX_READ_BYTES;
        return NULL;
    case REQ_STDIN:
        r->eof = take_u8(c);
        r->data = take_bytes(c, FRAME_MAX);
        return r->eof > 1 ? "The end of input is 0 or 1." : NULL;
    case REQ_SIGNAL:
        r->signal = take_u8(c);
        r->cancel = take_u8(c);
        return r->signal < 1 || r->signal > 64 || r->cancel > 1 ? "There is no such signal." : NULL;
    case REQ_RESIZE:
        r->rows = take_u16(c);
        r->cols = take_u16(c);
        if (r->rows < 1 || r->cols < 1 || r->rows > MAX_TERMINAL_SIDE || r->cols > MAX_TERMINAL_SIDE)
            return "A terminal has 1 to 4096 rows and columns.";
        return NULL;
    case REQ_FORGET:
    case REQ_WATCH:
        return NULL;
    default:
        return "There is no such request.";
    }
}

const char *request_decode(struct request *r, const uint8_t *frame, size_t len) {
    memset(r, 0, sizeof *r);
    struct cursor c = {frame, frame + len, false};
    r->type = take_u8(&c);
    r->id = take_u32(&c);
    const char *wrong = decode_body(r, &c);
    if (wrong == NULL && (c.bad || c.at != c.end)) wrong = "The frame does not parse.";
    return wrong;
}

void request_free(struct request *r) {
    free(r->arena);
    r->arena = NULL;
}
