#include "lockstep/comm/backends/shm/messages.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/kernels/copy_kernel.h"

namespace lockstep::shm {
namespace {

void check_size(const Team& team, const Message& receive, std::uint64_t bytes) {
  if (receive.bytes == bytes) return;
  throw UsageError(concat("rank ", team.number_of(receive.peer), " sent ", bytes,
                          " bytes with tag ", receive.tag, ", this rank receives ", receive.bytes,
                          "; send and receive tensors of one size"));
}

}  // namespace

Messages::Messages(Team& team) : team_(team) {}

void Messages::start_send(Message& message) {
  Channel& channel = channels_[message.peer];
  if (!channel.populated) {
    const Layout& layout = team_.layout();
    const std::uint64_t begin = layout.message_chunk(team_.rank(), message.peer, 0);
    const std::uint64_t last = layout.message_chunk(team_.rank(), message.peer, kMessageChunks - 1);
    team_.segment()->populate(begin, last - begin + kLineBytes + kMessageChunkBytes);
    channel.populated = true;
  }
  channel.sends.push_back(&message);
}

void Messages::start_receive(Message& message) {
  message.order = receives_started_++;
  if (message.peer != Message::kAnyPeer) {
    Channel& channel = channels_[message.peer];
    channel.receives.push_back(&message);
    match_put_aside(message.peer, channel);
    return;
  }
  from_any_.push_back(&message);
  for (int peer = 0; peer < team_.ranks(); ++peer) {
    if (peer != team_.rank()) match_put_aside(peer, channels_[peer]);
  }
}

void Messages::forget(const Message& message) {
  if (message.peer == Message::kAnyPeer) {
    std::erase(from_any_, &message);
    return;
  }
  Channel& channel = channels_[message.peer];
  std::erase(channel.sends, &message);
  std::erase(channel.receives, &message);
  if (channel.into == &message) channel.into = nullptr;
}

bool Messages::advance() {
  bool advanced = false;
  for (auto& [peer, channel] : channels_) {
    while (!channel.sends.empty() && advance_send(peer, channel)) advanced = true;
    while ((!channel.receives.empty() || !from_any_.empty()) && advance_receive(peer, channel)) {
      advanced = true;
    }
  }
  return advanced;
}

bool Messages::advance_send(int peer, Channel& channel) {
  MessageCounters& ours = team_.messages(team_.rank(), peer);
  MessageCounters& theirs = team_.messages(peer, team_.rank());
  if (channel.sent_chunks - theirs.received.load() >= kMessageChunks) return false;
  Message& message = *channel.sends.front();
  std::byte* const chunk =
      team_.at(team_.layout().message_chunk(team_.rank(), peer, channel.sent_chunks));
  const MessageHeader header{.bytes = message.bytes, .tag = message.tag};
  std::memcpy(chunk, &header, sizeof header);
  const std::uint64_t bytes = std::min(kMessageChunkBytes, message.bytes - message.passed_bytes);
  lockstep::copy(chunk + kLineBytes, message.data + message.passed_bytes, bytes, team_.store());
  message.passed_bytes += bytes;
  ours.sent.store(++channel.sent_chunks);
  team_.wake_peers();
  if (message.passed_bytes == message.bytes) {
    message.complete = true;
    channel.sends.pop_front();
  }
  return true;
}

bool Messages::advance_receive(int peer, Channel& channel) {
  if (team_.messages(peer, team_.rank()).sent.load() == channel.received_chunks) return false;
  return take_chunk(peer, channel);
}

// The first receive that was called for such a message; one from any peer becomes one from this.
Message* Messages::find_receive(int peer, Channel& channel, std::int64_t tag) {
  const auto find = [&](const std::deque<Message*>& receives) -> Message* {
    const auto match = std::ranges::find_if(receives, [&](const Message* receive) {
      return receive->tag == tag && receive != channel.into;
    });
    return match == receives.end() ? nullptr : *match;
  };
  Message* const from_peer = find(channel.receives);
  Message* const from_any = find(from_any_);
  if (from_any == nullptr) return from_peer;
  if (from_peer != nullptr && from_peer->order < from_any->order) return from_peer;
  std::erase(from_any_, from_any);
  from_any->peer = peer;
  channel.receives.push_back(from_any);
  return from_any;
}

bool Messages::take_chunk(int peer, Channel& channel) {
  const std::byte* const chunk =
      team_.at(team_.layout().message_chunk(peer, team_.rank(), channel.received_chunks));
  MessageHeader header;
  std::memcpy(&header, chunk, sizeof header);
  if (channel.into == nullptr && !channel.aside) {  // The first chunk of a message.
    if (Message* const match = find_receive(peer, channel, header.tag)) {
      check_size(team_, *match, header.bytes);
      channel.into = match;
    } else {
      aside_bytes_ += header.bytes;
      if (aside_bytes_ > kMostAsideBytes) {
        throw CommError(concat("rank ", team_.number_of(peer), " sent ", aside_bytes_,
                               " bytes with tags that this rank does not receive; receive them"));
      }
      channel.put_aside.push_back({.tag = header.tag, .bytes = header.bytes, .data = {}});
      channel.aside = true;
    }
  }
  const std::byte* const data = chunk + kLineBytes;
  if (channel.aside) {
    Aside& aside = channel.put_aside.back();
    const std::uint64_t bytes =
        std::min<std::uint64_t>(kMessageChunkBytes, aside.bytes - aside.data.size());
    aside.data.insert(aside.data.end(), data, data + bytes);
    aside.complete = aside.data.size() == aside.bytes;
    if (aside.complete) channel.aside = false;
  } else {
    Message& receive = *channel.into;
    const std::uint64_t bytes = std::min(kMessageChunkBytes, receive.bytes - receive.passed_bytes);
    lockstep::copy(receive.data + receive.passed_bytes, data, bytes);
    receive.passed_bytes += bytes;
    if (receive.passed_bytes == receive.bytes) {
      receive.complete = true;
      std::erase(channel.receives, &receive);
      channel.into = nullptr;
    }
  }
  team_.messages(team_.rank(), peer).received.store(++channel.received_chunks);
  team_.wake_peers();
  match_put_aside(peer, channel);
  return true;
}

void Messages::match_put_aside(int peer, Channel& channel) {
  for (auto aside = channel.put_aside.begin(); aside != channel.put_aside.end();) {
    Message* const match = aside->complete ? find_receive(peer, channel, aside->tag) : nullptr;
    if (match == nullptr) {
      ++aside;
      continue;
    }
    Message& receive = *match;
    check_size(team_, receive, aside->bytes);
    if (!aside->data.empty()) std::memcpy(receive.data, aside->data.data(), aside->bytes);
    receive.complete = true;
    std::erase(channel.receives, match);
    aside_bytes_ -= aside->bytes;
    aside = channel.put_aside.erase(aside);
  }
}

}  // namespace lockstep::shm
