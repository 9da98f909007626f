#include "tools/report/run_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"
#include "tools/report/axis.h"
#include "tools/report/curve_chart.h"
#include "tools/report/html_text.h"
#include "tools/report/page_style.h"

namespace lockstep::inline internal {
namespace {

// Browsers open a page of so many charts and rows at once.
constexpr std::size_t kMostCharts = 60;
constexpr std::size_t kMostRows = 100;
constexpr std::size_t kMostResumeMarks = 100;

std::string left_out(std::size_t all, std::size_t most, const char* what) {
  if (all <= most) return {};
  return concat("<p class=\"sub\">", all - most, " ", what, " left out.</p>\n");
}

std::string duration_in_words(double seconds) {
  constexpr double kMostSeconds = 1e12;
  if (!(seconds >= 0 && seconds < kMostSeconds)) return "unknown";
  const auto whole = static_cast<long long>(std::llround(seconds));
  if (seconds < 10) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2g s", seconds);
    return text;
  }
  if (whole < 120) return concat(whole, " s");
  if (whole < 7200) return concat(whole / 60, " min ", whole % 60, " s");
  return concat(whole / 3600, " h ", whole / 60 % 60, " min");
}

std::string tile(const std::string& value, const std::string& name) {
  return concat("<div class=\"tile\"><b>", html_text(value), "</b><span>", html_text(name),
                "</span></div>");
}

std::string tiles(const RunReport& report) {
  std::string html = "<div class=\"tiles\">";
  char step[32];
  std::snprintf(step, sizeof step, "%.0f", report.metrics.last_step);
  html += tile(step, "steps");
  html += tile(short_number(report.metrics.last_epoch + 1), "epochs begun");
  html += tile(duration_in_words(report.metrics.seconds), "training time");
  for (const char* const name : {"train_loss", "val_loss", "val_accuracy", "samples_per_second"}) {
    const auto curve = std::ranges::find(report.metrics.curves, name, &Curve::name);
    if (curve == report.metrics.curves.end() || curve->points.empty()) continue;
    html += tile(short_number(curve->points.back().value), concat("last ", name));
  }
  const std::size_t runs =
      std::max(report.runs.runs.size(), report.metrics.went_back_to.size() + 1);
  html += tile(std::to_string(runs), runs == 1 ? "run" : "runs");
  return html + "</div>\n";
}

std::vector<double> resumed_at(const RunReport& report) {
  std::vector<double> steps;
  for (const NotedRun& run : report.runs.runs) {
    if (run.first_step > 0) steps.push_back(static_cast<double>(run.first_step));
  }
  return report.runs.runs.empty() ? report.metrics.went_back_to : steps;
}

std::string charts(const RunReport& report) {
  std::string html = "<h2>Metrics</h2>\n";
  std::vector<double> resumed = resumed_at(report);
  if (!resumed.empty()) html += "<p class=\"sub\">Dashed: where a run resumed.</p>\n";
  html += left_out(resumed.size(), kMostResumeMarks, "earlier marks of resumed runs are");
  if (resumed.size() > kMostResumeMarks)
    resumed.erase(resumed.begin(), resumed.end() - kMostResumeMarks);
  std::vector<ChartPlan> plans = plan_charts(report.metrics.curves);
  html += left_out(plans.size(), kMostCharts, "charts of further metrics in metrics.jsonl are");
  plans.resize(std::min(plans.size(), kMostCharts));
  html += "<div class=\"charts\">\n";
  for (const ChartPlan& plan : plans) {
    const std::string unit = plan.unit.empty() ? "" : concat(", ", plan.unit);
    html += concat("<div class=\"card\"><h3>", html_text(plan.title + unit), "</h3>",
                   draw_chart(plan, resumed), "</div>\n");
  }
  return html + "</div>\n";
}

std::string lanes(const RunReport& report) {
  if (report.lanes.lanes.empty()) return {};
  return concat("<h2>Ranks</h2>\n<p class=\"sub\">", count_text(report.lanes.lanes.size(), "rank"),
                ", from the timeline traces/", html_text(report.timeline),
                "; ui.perfetto.dev shows all of it.</p>\n", "<div class=\"card scroll\">",
                draw_lanes(report.lanes), "</div>\n");
}

// The last rows; nothing where there are none.
std::string table(const char* title, const char* style, const std::vector<std::string>& header,
                  const std::vector<std::vector<std::string>>& rows) {
  if (rows.empty()) return {};
  const auto row = [](const std::vector<std::string>& cells, const char* tag) {
    std::string html = "<tr>";
    for (const std::string& cell : cells) {
      html += concat("<", tag, ">", html_text(cell), "</", tag, ">");
    }
    return html + "</tr>\n";
  };
  std::string html =
      concat("<div><h2>", title, "</h2>\n", left_out(rows.size(), kMostRows, "earlier rows are"),
             "<div class=\"scroll\"><table class=\"", style, "\">\n",
             header.empty() ? "" : row(header, "th"));
  for (std::size_t i = rows.size() - std::min(rows.size(), kMostRows); i < rows.size(); ++i) {
    html += row(rows[i], "td");
  }
  return html + "</table></div></div>\n";
}

std::string runs(const RunReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (const NotedRun& run : report.runs.runs) {
    rows.push_back({time_in_words(run.begin_seconds),
                    run.end_seconds ? duration_in_words(*run.end_seconds - run.begin_seconds) : "",
                    std::to_string(run.first_step),
                    run.end_step ? std::to_string(*run.end_step) : "", std::to_string(run.ranks),
                    run.host,
                    !run.how.empty()                   ? run.how
                    : &run == &report.runs.runs.back() ? "is running, or was killed"
                                                       : "was killed"});
  }
  return table("Runs", "runs",
               {"start", "duration", "from step", "to step", "ranks", "rank 0 on", "end"}, rows);
}

std::string files(const char* title, const char* folder, const std::vector<NotedFile>& all) {
  std::vector<std::vector<std::string>> rows;
  for (const NotedFile& file : all)
    rows.push_back({file.name, size_text(static_cast<double>(file.size_bytes))});
  return table(title, folder, {}, rows);
}

std::string machine(const RunReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, value] : report.runs.machine) rows.push_back({name, value});
  return table("Machine", "machine", {}, rows);
}

std::string audit(const RunReport& report) {
  if (report.audit.empty()) return {};
  return concat("<h2>Samples</h2>\n<p class=\"", report.is_audit_good ? "good" : "bad", "\">",
                report.is_audit_good ? "Each sample of each epoch was trained once."
                                     : "Samples are missing, or were trained twice.",
                "</p>\n<pre>", html_text(report.audit), "</pre>\n");
}

std::string problems(const RunReport& report) {
  if (report.problems.empty()) return {};
  std::string html = "<h2>Problems</h2>\n<ul class=\"problems\">\n";
  for (const std::string& problem : report.problems)
    html += concat("<li>", html_text(problem), "</li>\n");
  return html + "</ul>\n";
}

}  // namespace

std::string page_of(const RunReport& report) {
  const std::string name = html_text(report.name.substr(report.name.rfind('/') + 1));
  return concat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"><title>",
      name, " · Lockstep</title>\n<style>", page_style(), "</style></head><body>\n<h1>", name,
      "</h1>\n<p class=\"sub\">", html_text(report.name), "</p>\n", tiles(report), charts(report),
      lanes(report), runs(report), audit(report), "<div class=\"two\">\n", machine(report),
      files("Snapshots", "snapshots", report.snapshots), files("Best weights", "best", report.best),
      "</div>\n", problems(report), "<script>", page_script(), "</script>\n</body></html>\n");
}

}  // namespace lockstep::inline internal
