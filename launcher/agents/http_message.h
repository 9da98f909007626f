#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lockstep::inline internal {

using HttpFields = std::vector<std::pair<std::string, std::string>>;

/// Text of an HTTP/1.1 message (RFC 9112) after which the sender closes the connection. Written as
/// one string, since writing Beast's own messages takes a third of the time to compile this.
/// `fields`: without line breaks.
std::string http_request(const std::string& method, const std::string& target,
                         const HttpFields& fields, const std::string& body);
std::string http_response(unsigned status, const HttpFields& fields, const std::string& body);

}  // namespace lockstep::inline internal
