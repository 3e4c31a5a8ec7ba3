#include "cli/completion.h"

#include <functional>

#include "cli/command.h"
#include "core/base/error.h"

namespace dsec::cli {
namespace {

using Visit = std::function<void(const Command&)>;

void walk(const Command& command, const Visit& visit) {
  visit(command);
  for (const auto& child : command.children()) walk(*child, visit);
}

// "run" or "layer rm": the path without "dsec".
std::string words_of(const Command& command) {
  const std::string path = command.path();
  const auto blank = path.find(' ');
  return blank == std::string::npos ? "" : path.substr(blank + 1);
}

std::string joined(const std::vector<std::string>& words, const std::string& separator) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

std::vector<std::string> child_names(const Command& command) {
  std::vector<std::string> names;
  for (const auto& child : command.children()) names.push_back(child->name());
  return names;
}

std::vector<std::string> spellings(const Argument& argument) {
  std::vector<std::string> out;
  std::string names = argument.names;
  for (std::size_t comma; (comma = names.find(',')) != std::string::npos; names.erase(0, comma + 1))
    out.push_back(names.substr(0, comma));
  out.push_back(names);
  return out;
}

// Where the shell finds values of this kind: fixed words, "@sandboxes", "@layers", "@files", "@directories" or nothing.
std::string values_of(const Argument& argument) {
  if (!argument.choices.empty()) return joined(argument.choices, " ");
  const std::string& kind = argument.value;
  if (kind == "SANDBOX") return "@sandboxes";
  if (kind == "REF" || kind == "ENV|REF") return "@layers";
  if (kind == "DIR") return "@directories";
  if (kind == "SHELL") return "bash zsh fish";
  if (kind.find("FILE") != std::string::npos || kind.find("PATH") != std::string::npos || kind == "SOURCE")
    return "@files";
  return "";
}

// bash and zsh share the tables; only the way in differs.
std::string tables(const Command& root) {
  std::string commands = "  case \"$1\" in\n", options = "  case \"$1\" in\n", values = "  case \"$1:$2\" in\n",
              positionals = "  case \"$1\" in\n";
  walk(root, [&](const Command& command) {
    const std::string words = words_of(command);
    if (!command.children().empty())
      commands += "    '" + words + "') echo '" + joined(child_names(command), " ") + "' ;;\n";
    std::vector<std::string> names = {"--help"};
    std::string last;
    for (const Argument& argument : command.arguments()) {
      if (argument.positional) {
        if (last.empty()) last = values_of(argument);
        continue;
      }
      const std::vector<std::string> all = spellings(argument);
      names.insert(names.end(), all.begin(), all.end());
      if (argument.value.empty()) continue;
      const std::string list = values_of(argument);
      for (const auto& name : all)
        values += "    '" + words + ":" + name + "') echo '" + (list.empty() ? "@any" : list) + "' ;;\n";
    }
    options += "    '" + words + "') echo '" + joined(names, " ") + "' ;;\n";
    if (!last.empty()) positionals += "    '" + words + "') echo '" + last + "' ;;\n";
  });
  const auto function = [](const std::string& name, const std::string& body) {
    return name + "() {\n" + body + "  esac\n}\n\n";
  };
  return function("_dsec_commands", commands) + function("_dsec_options", options) + function("_dsec_values", values) +
         function("_dsec_arguments", positionals);
}

constexpr const char* kShared = R"sh(_dsec_expand() {
  case "$1" in
    @sandboxes) dsec ps -a -q 2>/dev/null ;;
    @layers) dsec layer ls -q 2>/dev/null ;;
    *) printf '%s\n' $1 ;;
  esac
}

)sh";

constexpr const char* kBash = R"sh(_dsec() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} path= word list i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    [ "$word" = -- ] && { COMPREPLY=($(compgen -f -- "$current")); return; }
    list=$(_dsec_commands "$path")
    case " $list " in *" $word "*) path=${path:+$path }$word ;; esac
  done
  list=$(_dsec_values "$path" "$previous")
  if [ -z "$list" ]; then
    case $current in
      -*) list=$(_dsec_options "$path") ;;
      *) list="$(_dsec_commands "$path") $(_dsec_arguments "$path")" ;;
    esac
  fi
  list=${list# }
  case ${list% } in
    @any) ;;
    @files) COMPREPLY=($(compgen -f -- "$current")) ;;
    @directories) COMPREPLY=($(compgen -d -- "$current")) ;;
    *) COMPREPLY=($(compgen -W "$(_dsec_expand "${list% }")" -- "$current")) ;;
  esac
}
complete -o filenames -F _dsec dsec
)sh";

constexpr const char* kZsh = R"sh(_dsec() {
  local current=${words[CURRENT]} previous=${words[CURRENT-1]} path= word list i
  for ((i = 2; i < CURRENT; i++)); do
    word=${words[i]}
    [[ $word == -- ]] && { _files; return; }
    list=$(_dsec_commands "$path")
    case " $list " in *" $word "*) path=${path:+$path }$word ;; esac
  done
  list=$(_dsec_values "$path" "$previous")
  if [[ -z $list ]]; then
    case $current in
      -*) list=$(_dsec_options "$path") ;;
      *) list="$(_dsec_commands "$path") $(_dsec_arguments "$path")" ;;
    esac
  fi
  list=${list# }
  case ${list% } in
    @any) ;;
    @files) _files ;;
    @directories) _files -/ ;;
    @*) compadd -- ${(f)"$(_dsec_expand "${list% }")"} ;;
    *) compadd -- ${=list} ;;
  esac
}
compdef _dsec dsec
)sh";

std::string fish_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' || c == '\\' ? std::string{'\\', c} : std::string(1, c);
  return out + "'";
}

std::string fish_values(const std::string& list) {
  if (list == "@sandboxes") return " -a '(dsec ps -a -q 2>/dev/null)'";
  if (list == "@layers") return " -a '(dsec layer ls -q 2>/dev/null)'";
  if (list == "@directories") return " -a '(__fish_complete_directories)'";
  if (list == "@files") return " -F";
  return list.empty() ? "" : " -a " + fish_quoted(list);
}

std::string fish(const Command& root) {
  std::string out =
      "function __dsec_at\n"
      "  set -l words (commandline -opc)\n"
      "  set -l path\n"
      "  for word in $words[2..]\n"
      "    string match -q -- '-*' $word; or set -a path $word\n"
      "  end\n"
      "  set -l wanted (string split -n ' ' -- $argv[1])\n"
      "  set -l count (count $wanted)\n"
      "  test $count -eq 0; and begin; test (count $path) -eq 0; return; end\n"
      "  test (count $path) -ge $count; and test \"$path[1..$count]\" = \"$argv[1]\"\n"
      "end\n"
      "complete -c dsec -f\n";
  walk(root, [&](const Command& command) {
    const std::string at = "complete -c dsec -n " + fish_quoted("__dsec_at \"" + words_of(command) + "\"");
    for (const auto& child : command.children())
      out += at + " -a " + child->name() + " -d " + fish_quoted(child->summary()) + "\n";
    for (const Argument& argument : command.arguments()) {
      const std::string values = fish_values(values_of(argument));
      if (argument.positional) {
        if (!values.empty()) out += at + values + "\n";
        continue;
      }
      out += at;
      for (const auto& name : spellings(argument))
        out += name.rfind("--", 0) == 0 ? " -l " + name.substr(2) : " -s " + name.substr(1);
      out += (argument.value.empty() ? "" : " -r" + values) + " -d " + fish_quoted(argument.help) + "\n";
    }
  });
  return out;
}

}  // namespace

std::string completion_script(const std::string& shell, const Command& root) {
  if (shell == "bash") return tables(root) + kShared + kBash;
  if (shell == "zsh") return "#compdef dsec\n" + tables(root) + kShared + kZsh;
  if (shell == "fish") return fish(root);
  throw usage_error("there is no completion for the shell " + quote(shell)).hint("use bash, zsh or fish");
}

}  // namespace dsec::cli
