#include "tools/report/run_report.h"

#include <cmath>
#include <cstdio>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/count_text.h"
#include "tools/report/axis.h"
#include "tools/report/curve_chart.h"
#include "tools/report/html_text.h"
#include "tools/report/page_style.h"

namespace lockstep::inline internal {
namespace {

constexpr std::size_t kMostCharts = 60;
constexpr std::size_t kMostRuns = 50;

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

const Curve* curve_of(const RunReport& report, std::string_view name) {
  for (const Curve& curve : report.metrics.curves) {
    if (curve.name == name && !curve.points.empty()) return &curve;
  }
  return nullptr;
}

std::string tiles(const RunReport& report) {
  std::string html = "<div class=\"tiles\">";
  char step[32];
  std::snprintf(step, sizeof step, "%.0f", report.metrics.last_step);
  html += tile(step, "steps");
  html += tile(short_number(report.metrics.last_epoch + 1), "epochs begun");
  html += tile(duration_in_words(report.metrics.seconds), "training time");
  int shown = 0;
  constexpr int kMostShown = 4;
  for (const char* const name : {"train_loss", "val_loss", "val_accuracy", "samples_per_second"}) {
    if (const Curve* const curve = curve_of(report, name)) {
      html += tile(short_number(curve->points.back().value), concat("last ", name));
      ++shown;
    }
  }
  for (const Curve& curve : report.metrics.curves) {
    if (shown >= kMostShown || shown > 0 || curve.points.empty()) continue;
    html += tile(short_number(curve.points.back().value), concat("last ", curve.name));
    ++shown;
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
  const std::vector<double> resumed = resumed_at(report);
  if (!resumed.empty()) html += "<p class=\"sub\">Dashed: where a run went on.</p>\n";
  html += "<div class=\"charts\">\n";
  const auto plans = plan_charts(report.metrics.curves);
  for (std::size_t i = 0; i < plans.size() && i < kMostCharts; ++i) {
    const std::string unit = plans[i].unit.empty() ? "" : concat(", ", plans[i].unit);
    html += concat("<div class=\"card\"><h3>", html_text(plans[i].title + unit), "</h3>",
                   draw_chart(plans[i], resumed), "</div>\n");
  }
  html += "</div>\n";
  if (plans.size() > kMostCharts) {
    html += concat("<p class=\"sub\">", plans.size() - kMostCharts,
                   " more metrics are in metrics.jsonl.</p>\n");
  }
  return html;
}

std::string lanes(const RunReport& report) {
  if (report.lanes.lanes.empty()) return {};
  return concat("<h2>What the ranks do</h2>\n<p class=\"sub\">",
                count_text(report.lanes.lanes.size(), "rank"), ", by the timeline traces/",
                html_text(report.timeline), ", which ui.perfetto.dev opens in full.</p>\n",
                "<div class=\"card scroll\">", draw_lanes(report.lanes), "</div>\n");
}

std::string runs(const RunReport& report) {
  const auto& all = report.runs.runs;
  if (all.empty()) return {};
  std::string html =
      "<h2>Runs</h2>\n<div class=\"scroll\"><table "
      "class=\"runs\"><tr><th>begun</th><th>lasted</th><th "
      "class=\"number\">from step</th><th class=\"number\">to step</th><th "
      "class=\"number\">ranks</th>"
      "<th>rank 0 on</th><th>end</th></tr>\n";
  const std::size_t first = all.size() > kMostRuns ? all.size() - kMostRuns : 0;
  for (std::size_t i = first; i < all.size(); ++i) {
    const NotedRun& run = all[i];
    const bool is_last = i + 1 == all.size();
    const std::string how = !run.how.empty() ? run.how
                            : is_last        ? "runs still, or was killed"
                                             : "was killed";
    html += concat("<tr><td>", time_in_words(run.begin_seconds), "</td><td>",
                   run.end_seconds ? duration_in_words(*run.end_seconds - run.begin_seconds) : "",
                   "</td><td class=\"number\">", run.first_step, "</td><td class=\"number\">",
                   run.end_step ? std::to_string(*run.end_step) : "", "</td><td class=\"number\">",
                   run.ranks, "</td><td>", html_text(run.host), "</td><td>", html_text(how),
                   "</td></tr>\n");
  }
  return html + "</table></div>\n" +
         (first > 0 ? concat("<p class=\"sub\">", first, " earlier ones are in runs.jsonl.</p>\n")
                    : "");
}

std::string files(const std::string& title, const char* folder, const std::vector<NotedFile>& all) {
  if (all.empty()) return {};
  std::string html =
      concat("<div><h2>", title, "</h2>\n<div class=\"scroll\"><table class=\"", folder, "\">\n");
  for (const NotedFile& file : all) {
    html += concat("<tr><td>", html_text(file.name), "</td><td class=\"number\">",
                   bytes_in_words(file.size_bytes), "</td></tr>\n");
  }
  return html + "</table></div></div>\n";
}

std::string machine(const RunReport& report) {
  if (report.runs.machine.empty()) return {};
  std::string html = "<div><h2>Machine</h2>\n<div class=\"scroll\"><table class=\"machine\">\n";
  for (const auto& [name, value] : report.runs.machine) {
    html += concat("<tr><th>", html_text(name), "</th><td>", html_text(value), "</td></tr>\n");
  }
  return html + "</table></div></div>\n";
}

std::string audit(const RunReport& report) {
  if (report.audit.empty()) return {};
  return concat("<h2>Samples</h2>\n<p class=\"", report.is_audit_good ? "good" : "bad", "\">",
                report.is_audit_good ? "Each sample of each epoch was trained once."
                                     : "Samples are missing or came twice.",
                "</p>\n<pre>", html_text(report.audit), "</pre>\n");
}

std::string problems(const RunReport& report) {
  if (report.problems.empty()) return {};
  std::string html = "<h2>What could not be read</h2>\n<ul class=\"problems\">\n";
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
