#include "lockstep/ddp/internal/error_context.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

void rethrow_with_context(const std::string& context) {
  const auto with_context = [&](const Error& error) { return concat(error.what(), "; ", context); };
  try {
    throw;
  } catch (const UsageError& error) {
    throw UsageError(with_context(error));
  } catch (const TimeoutError& error) {
    throw TimeoutError(with_context(error), error.fields());
  } catch (const PeerLost& error) {
    throw PeerLost(with_context(error), error.fields());
  } catch (const PeerFailed& error) {
    throw PeerFailed(with_context(error), error.fields());
  } catch (const CommError& error) {
    throw CommError(with_context(error), error.fields());
  }
}

}  // namespace lockstep::inline internal
