#pragma once

#include <linux/uio.h>

#include "runners/guest/config.h"

namespace dsec::guest {

/// Non-blocking sends that raise no signal: bytes taken, or a negative errno.
long send_some(int fd, const void* data, size_t size);
long send_parts(int fd, const iovec* parts, unsigned count);
/// One whole frame with descriptors; false when the peer does not take it at once.
bool send_with_descriptors(int fd, const wire::FrameHeader& header, const void* data, size_t size, const int* fds,
                           unsigned count);

/// One whole frame with descriptors over a blocking socket, however long. 0 or a negative errno.
long send_whole(int fd, const wire::FrameHeader& header, const void* data, size_t size, const int* fds, unsigned count);

/// Waits for one frame of any type, without descriptors; it stands in `frame`, with its header.
bool receive_any(int fd, Buffer& frame);
/// Waits for one frame of that type and its descriptors (at most kMaxDescriptors, close-on-exec). False when the peer
/// closes or breaks the protocol.
bool receive_frame(int fd, wire::Type type, Buffer& frame, int* fds, unsigned& count);

/// Reads what is there, with descriptors (close-on-exec; `count` of at most `room`). Bytes, 0 at the end, or a negative
/// errno.
long receive_some(int fd, void* data, size_t size, int* fds, unsigned room, unsigned& count);

/// Whether the peer is root or runs as we do (SO_PEERCRED).
bool peer_is_allowed(int fd);

/// Listens at `name` in `directory` (which becomes the working directory: socket addresses hold 108 bytes only).
long listen_in(int directory, const char* name);

}  // namespace dsec::guest
