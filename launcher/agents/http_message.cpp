#include "launcher/agents/http_message.h"

#include <boost/beast/http/status.hpp>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

std::string message(std::string start_line, const HttpFields& fields, const std::string& body) {
  std::string text = std::move(start_line) + "\r\n";
  for (const auto& [name, value] : fields) text += concat(name, ": ", value, "\r\n");
  return text + concat("Connection: close\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
}

}  // namespace

std::string http_request(const std::string& method, const std::string& target,
                         const HttpFields& fields, const std::string& body) {
  return message(concat(method, " ", target, " HTTP/1.1"), fields, body);
}

std::string http_response(unsigned status, const HttpFields& fields, const std::string& body) {
  namespace http = boost::beast::http;
  const std::string reason(http::obsolete_reason(http::int_to_status(status)));
  return message(concat("HTTP/1.1 ", status, " ", reason), fields, body);
}

}  // namespace lockstep::inline internal
