#include "agent.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { RECEIVE_BYTES = 64 * 1024, STREAM_RECEIVE_BYTES = 768 * 1024 };

static bool client_reads(const struct agent *a) { return queue_len(&a->out) < OUT_HIGH_WATER; }

/* Handles whole frames while the client takes the answers. Returns false when a length is out of range. */
static bool handle_frames(struct agent *a) {
    while (client_reads(a) && queue_len(&a->in) >= 4) {
        const uint8_t *frame = a->in.data + a->in.head;
        uint32_t len = load_u32(frame);
        if (len < FRAME_MIN || len > FRAME_MAX) return false;
        if (queue_len(&a->in) < len + (size_t)4) break;
        request_handle(a, frame + 4, len);
        queue_consume(&a->in, len + (size_t)4);
    }
    return true;
}

static void arm_requests(struct agent *a) {
    bool wanted = client_reads(a);
    if (wanted == a->requests_armed) return;
    a->requests_armed = wanted;
    source_change(a, &a->requests, wanted ? EPOLLIN : 0);
}

bool connection_receive(struct agent *a, bool hung_up) {
    if (!client_reads(a)) return !hung_up;
    size_t want = a->stream_count ? STREAM_RECEIVE_BYTES : queue_len(&a->in) > 4 ? FRAME_BYTES_MAX : RECEIVE_BYTES;
    ssize_t got = read(0, queue_reserve(&a->in, want), want);
    if (got == 0) return false;
    /* gVisor says EAGAIN also after a poll that promised bytes. */
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    queue_commit(&a->in, (size_t)got);
    return handle_frames(a);
}

/* Writes what waits. Returns false when nobody will ever read it; `full` says whether some is left. */
static bool write_answers(struct agent *a, bool *full) {
    *full = false;
    while (queue_len(&a->out) > 0 && !*full) {
        ssize_t put = write(1, a->out.data + a->out.head, queue_len(&a->out));
        if (put > 0)
            queue_consume(&a->out, (size_t)put);
        else if (errno == EAGAIN)
            *full = true;
        else if (errno != EINTR)
            return false;
    }
    return true;
}

bool connection_send(struct agent *a) {
    bool full;
    do {
        if (!write_answers(a, &full)) return false;
        if (!handle_frames(a)) return false; /* those that waited for the client to read */
    } while (!full && queue_len(&a->out) > 0);
    if (full != a->answers_armed) {
        a->answers_armed = full;
        source_change(a, &a->answers, full ? EPOLLOUT : 0);
    }
    arm_requests(a);
    return true;
}
