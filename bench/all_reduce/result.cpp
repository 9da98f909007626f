#include "bench/all_reduce/result.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace lockstep::bench {
namespace {

// Of sorted values.
double quantile(const std::vector<double>& values, double share) {
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(share * last + 0.5)];
}

Row summarize(const Subject& subject, std::int64_t bytes, std::string placement,
              std::vector<double> times) {
  std::sort(times.begin(), times.end());
  Row row{.subject = subject, .bytes = bytes, .placement = std::move(placement)};
  row.calls = times.size();
  row.us = quantile(times, 0.5);
  row.us_min = times.front();
  row.us_p90 = quantile(times, 0.9);
  if (subject.traffic > 0 && row.us > 0) {
    row.gb_per_s = subject.traffic * static_cast<double>(bytes) / row.us / 1e3;
  }
  return row;
}

// The row of `name` at the place of `row`: of ordinary memory where it has several.
const Row* counterpart(const std::vector<Row>& rows, const Row& row, const std::string& name) {
  const Row* found = nullptr;
  for (const Row& other : rows) {
    if (other.bytes != row.bytes || other.placement != row.placement) continue;
    if (other.subject.name != name) continue;
    if (found == nullptr || other.subject.memory == "private") found = &other;
  }
  return found;
}

}  // namespace

std::string placement_label(Placement before, Placement after) {
  return before == after ? placement_name(before) : "mixed";
}

std::vector<Row> make_rows(const std::vector<Subject>& subjects, const std::vector<Sample>& samples,
                           const std::string& baseline) {
  std::map<std::tuple<std::int64_t, std::string, std::size_t>, std::vector<double>> times;
  for (const Sample& sample : samples) {
    auto& all = times[{sample.bytes, placement_label(sample.before, sample.after), sample.subject}];
    all.insert(all.end(), sample.call_us.begin(), sample.call_us.end());
  }
  std::vector<Row> rows;
  for (auto& [key, values] : times) {
    if (values.empty()) continue;
    const auto& [bytes, placement, subject] = key;
    rows.push_back(summarize(subjects[subject], bytes, placement, std::move(values)));
  }
  for (Row& row : rows) {
    if (row.subject.is_limit) continue;
    if (const Row* base = counterpart(rows, row, baseline)) row.speedup = base->us / row.us;
    if (const Row* kernel = counterpart(rows, row, kKernel)) {
      row.share_of_kernel = kernel->us / row.us;
    }
  }
  return rows;
}

std::string choose_baseline(const std::vector<std::string>& backends) {
  const auto gloo = std::find(backends.begin(), backends.end(), "gloo");
  return gloo != backends.end() ? *gloo : backends.back();
}

}  // namespace lockstep::bench
