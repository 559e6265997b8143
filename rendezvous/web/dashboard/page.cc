#include "rendezvous/web/dashboard/page.h"

namespace cadre::web {
namespace {

// The files' text as C++ literals: see BUILD.
constexpr char kHtml[] =
#include "rendezvous/web/dashboard/page/index.html.inc"
    ;
constexpr char kStyle[] =
#include "rendezvous/web/dashboard/page/style.css.inc"
    ;
constexpr char kIcon[] =
#include "rendezvous/web/dashboard/page/icon.svg.inc"
    ;
constexpr char kMain[] =
#include "rendezvous/web/dashboard/page/main.js.inc"
    ;
constexpr char kCluster[] =
#include "rendezvous/web/dashboard/page/cluster.js.inc"
    ;
constexpr char kDom[] =
#include "rendezvous/web/dashboard/page/dom.js.inc"
    ;
constexpr char kEvents[] =
#include "rendezvous/web/dashboard/page/events.js.inc"
    ;
constexpr char kJob[] =
#include "rendezvous/web/dashboard/page/job.js.inc"
    ;
constexpr char kPictures[] =
#include "rendezvous/web/dashboard/page/pictures.js.inc"
    ;
constexpr char kLogs[] =
#include "rendezvous/web/dashboard/page/logs.js.inc"
    ;
constexpr char kStacks[] =
#include "rendezvous/web/dashboard/page/stacks.js.inc"
    ;
constexpr char kCharts[] =
#include "rendezvous/web/dashboard/page/charts.js.inc"
    ;
constexpr char kCompare[] =
#include "rendezvous/web/dashboard/page/compare.js.inc"
    ;
constexpr char kHistory[] =
#include "rendezvous/web/dashboard/page/history.js.inc"
    ;
constexpr char kUplot[] =
#include "rendezvous/web/dashboard/page/uplot.js.inc"
    ;
constexpr char kUplotStyle[] =
#include "rendezvous/web/dashboard/page/uplot.css.inc"
    ;

constexpr char kScriptType[] = "text/javascript; charset=utf-8";

}  // namespace

const PageFile* FindPageFile(absl::string_view path) {
  static constexpr PageFile kFiles[] = {
      {"/", "text/html; charset=utf-8", kHtml},
      {"/style.css", "text/css; charset=utf-8", kStyle},
      {"/icon.svg", "image/svg+xml", kIcon},
      {"/main.js", kScriptType, kMain},
      {"/dom.js", kScriptType, kDom},
      {"/events.js", kScriptType, kEvents},
      {"/job.js", kScriptType, kJob},
      {"/pictures.js", kScriptType, kPictures},
      {"/logs.js", kScriptType, kLogs},
      {"/cluster.js", kScriptType, kCluster},
      {"/stacks.js", kScriptType, kStacks},
      {"/charts.js", kScriptType, kCharts},
      {"/compare.js", kScriptType, kCompare},
      {"/history.js", kScriptType, kHistory},
      {"/uplot.js", kScriptType, kUplot},
      {"/uplot.css", "text/css; charset=utf-8", kUplotStyle},
  };
  for (const PageFile& file : kFiles) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

}  // namespace cadre::web
