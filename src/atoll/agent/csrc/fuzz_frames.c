/* Drives what reads foreign bytes: the request decoder, the shim's relay between a hostile client and a hostile agent, the
 * ring under any order of writes and reads, archives, and the reader of memory.stat. Beside crashes it checks what must always hold; `make fuzz` builds it. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "memory_stat.h"
#include "request.h"
#include "ring.h"
#include "shim.h"
#include "tar.h"

static void require(bool holds) {
    if (!holds) abort();
}

static void fuzz_request(const uint8_t *data, size_t size) {
    struct request request;
    const char *wrong = request_decode(&request, data, size);
    if (wrong == NULL && (request.type == REQ_START || request.type == REQ_RUN)) {
        require(request.argv[0] != NULL && request.argv[0][0] != 0);
        size_t chars = 0;
        for (char **item = request.argv; *item; item++) chars += strlen(*item);
        for (char **item = request.env; *item; item++) {
            require(strchr(*item, '=') != NULL);
            chars += strlen(*item);
        }
        require(chars <= size);
    }
    if (wrong == NULL && request.type == REQ_STDIN) require(request.data.len <= size);
    if (wrong == NULL && request.type == REQ_DATA) require(request.data.len > 0 && request.data.len <= STREAM_BYTES_PER_FRAME);
    if (wrong == NULL && request.type == REQ_OPEN) {
        require(request.kind == STREAM_PORT ? request.port != 0 : request.kind == STREAM_FILES);
        size_t chars = 0;
        for (char **item = request.argv; item && *item; item++) chars += strlen(*item);
        require(chars <= size);
    }
    request_free(&request);
}

/* Every byte is an operation: write some output to one stream, read on, or seal. */
static void fuzz_ring(const uint8_t *data, size_t size) {
    static int ends[2] = {-1, -1};
    static uint8_t pattern[FILL_BYTES];
    if (ends[0] < 0) {
        require(pipe(ends) == 0);
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        require(fcntl(ends[1], F_SETPIPE_SZ, FILL_BYTES) > 0);
        for (size_t i = 0; i < sizeof pattern; i++) pattern[i] = (uint8_t)(i * 31);
    }
    struct ring ring = {0};
    uint64_t written = 0, seq = 0;
    ring_mark(&ring, EVENT_INIT);
    for (size_t i = 0; i < size && i < 512; i++) {
        uint8_t kind = data[i] & 1 ? EVENT_STDOUT : EVENT_STDERR;
        size_t len = data[i] & 2 ? (size_t)1 << (data[i] >> 4) : (size_t)data[i] * 512;
        if (len) require(write(ends[1], pattern, len) == (ssize_t)len);
        while (len > 0) {
            ssize_t got = ring_fill(&ring, kind, ends[0]);
            require(got > 0);
            len -= (size_t)got;
            written += (uint64_t)got;
        }
        if (data[i] & 4) ring_seal(&ring);
        require(ring.end == written && ring.end - ring.start <= RING_BYTES);
        require(written <= RING_BYTES || ring.end - ring.start > RING_BYTES - CHUNK_BYTES);
        if (seq < ring.first_seq) {
            require(ring_dropped_bytes(&ring, seq) <= ring.start);
            require(ring_dropped_bytes(&ring, 0) == ring.start);
            seq = ring.first_seq;
        }
    }
    ring_mark(&ring, EVENT_EXIT);
    ring_shrink(&ring);
    uint64_t kept = 0;
    for (seq = ring.first_seq; seq < ring_next_seq(&ring); seq++) {
        struct ring_view view = ring_event_at(&ring, seq);
        require(view.part[0].len + view.part[1].len <= CHUNK_BYTES);
        kept += view.part[0].len + view.part[1].len;
    }
    require(kept == ring.end - ring.start);
    ring_free(&ring);
}

static void say(int fd, const uint8_t *data, size_t len) {
    ssize_t ignored = send(fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)ignored;
}

/* What comes out is whole frames, in both directions, whatever goes in and wherever it is cut. */
static void hear(int fd) {
    static uint8_t frames[4 * RELAY_BYTES];
    size_t len = 0;
    for (ssize_t got; len < sizeof frames && (got = recv(fd, frames + len, sizeof frames - len, MSG_DONTWAIT)) > 0;)
        len += (size_t)got;
    for (size_t at = 0; at < len;) {
        require(len - at >= FRAME_HEAD);
        size_t frame = load_u32(frames + at) + (size_t)4;
        require(frame >= FRAME_HEAD && frame <= FRAME_BYTES_MAX && frame <= len - at);
        at += frame;
    }
}

/* Every record: whose bytes, how many, the bytes. */
static void fuzz_relay(const uint8_t *data, size_t size) {
    int client[2], agent[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, client) == 0);
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, agent) == 0);
    struct relay relay;
    relay_init(&relay, -1, agent[0]);
    relay.client = client[0];
    while (size >= 2) {
        size_t len = data[1] < size - 2 ? data[1] : size - 2;
        say(data[0] & 1 ? client[1] : agent[1], data + 2, len);
        if (data[0] & 2) relay_send_oom(&relay);
        struct pollfd fds[3];
        relay_poll(&relay, fds);
        require(poll(fds, 3, 0) >= 0);
        relay_run(&relay, fds);
        data += 2 + len;
        size -= 2 + len;
    }
    hear(client[1]);
    hear(agent[1]);
    relay_free(&relay);
    close(client[1]);
    close(agent[1]);
}

struct bytes_left {
    const uint8_t *at;
    size_t len;
};

static bool read_left(void *context, uint8_t *data, size_t len, bool *end) {
    struct bytes_left *left = context;
    if (left->len < len) {
        *end = left->len == 0;
        return false;
    }
    memcpy(data, left->at, len);
    left->at += len;
    left->len -= len;
    return true;
}

/* A hostile archive is read to its end; what was understood is written again and must be understood alike. */
static void fuzz_tar(const uint8_t *data, size_t size) {
    static struct tar_reader reader, again;
    static struct tar_entry entry, copy;
    static uint8_t head[TAR_HEAD_MAX];
    struct bytes_left left = {data, size};
    memset(&reader, 0, sizeof reader);
    reader.read = read_left;
    reader.context = &left;
    for (int count = 0; count < 64 && tar_next(&reader, &entry) == TAR_ENTRY; count++) {
        require(memchr(entry.path, 0, sizeof entry.path) && memchr(entry.link, 0, sizeof entry.link));
        uint8_t some[100];
        size_t got;
        if (tar_data(&reader, some, sizeof some, &got) != TAR_ENTRY) return;
        require(got <= entry.size);
        if (entry.path[0] == 0 || strchr("xgLKS", entry.type)) continue;
        size_t len = tar_head(&entry, head);
        require(len % TAR_BLOCK == 0 && len <= sizeof head);
        struct bytes_left written = {head, len};
        memset(&again, 0, sizeof again);
        again.read = read_left;
        again.context = &written;
        require(tar_next(&again, &copy) == TAR_ENTRY);
        require(strcmp(copy.path, entry.path) == 0 && strcmp(copy.link, entry.link) == 0 && copy.size == entry.size);
    }
}

static void fuzz_stat(const uint8_t *data, size_t size) {
    char *text = must_alloc(size + 1);
    if (size) memcpy(text, data, size);
    uint64_t bytes;
    stat_held_bytes(text, 1, &bytes);
    stat_held_bytes(text, 2, &bytes);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    switch (data[0] % 8) {
    case 0:
        fuzz_ring(data + 1, size - 1);
        break;
    case 1:
        fuzz_stat(data + 1, size - 1);
        break;
    case 2:
        fuzz_relay(data + 1, size - 1);
        break;
    case 3:
        fuzz_tar(data + 1, size - 1);
        break;
    default:
        fuzz_request(data + 1, size - 1);
    }
    return 0;
}
