#pragma once

namespace dsec::engine {

/// The style and the script of a report, as they stand in the page. The script adds to a page that can be read without.
extern const char* const kReportStyle;
extern const char* const kReportScript;

}  // namespace dsec::engine
