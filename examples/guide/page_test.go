package guide_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const page = "../../docs/guide.md"

// fenced is a block of the page between ``` and ```.
type fenced struct{ language, text string }

// read returns the page's blocks, and its text without them.
func read(t *testing.T) (blocks []fenced, prose string) {
	t.Helper()
	data, err := os.ReadFile(page)
	check(err)
	for i, part := range regexp.MustCompile("(?m)^```").Split(string(data), -1) {
		if i%2 == 0 {
			prose += part
			continue
		}
		language, text, _ := strings.Cut(part, "\n")
		blocks = append(blocks, fenced{language, text})
	}
	return blocks, prose
}

// source returns the code of this folder and of examples/program.
func source() (code string) {
	names, err := filepath.Glob("*_test.go")
	check(err)
	for _, name := range append(names, "../program/main.go") {
		data, err := os.ReadFile(name)
		check(err)
		code += "\n" + string(data)
	}
	return code
}

// prefixed puts a prefix before every line that is not empty.
func prefixed(text, prefix string) string {
	return regexp.MustCompile(`(?m)^(.*\S)`).ReplaceAllString(text, prefix+"$1")
}

// occurs reports whether the lines are in the code, perhaps further indented.
func occurs(code, lines string) bool {
	for range 4 {
		if strings.Contains(code, "\n"+lines) {
			return true
		}
		lines = prefixed(lines, "\t")
	}
	return false
}

// comment returns an output as the example's code states it.
func comment(output string) string { return "\t// Output:\n" + prefixed(output, "\t// ") + "}\n" }

// A block of Go is a run of whole lines of the code; a block of text is the whole output of an example.
func TestPageShowsCodeThatRuns(t *testing.T) {
	code, count := source(), map[string]int{}
	blocks, _ := read(t)
	for _, b := range blocks {
		count[b.language]++
		switch {
		case b.language == "go" && !occurs(code, b.text):
			t.Errorf("no file here has these lines:\n%s", b.text)
		case b.language == "text" && !strings.Contains(code, "\n"+comment(b.text)):
			t.Errorf("no example here has this output:\n%s", b.text)
		case !slices.Contains([]string{"go", "text", "sh", "console"}, b.language):
			t.Errorf("a block of %q", b.language)
		}
	}
	if count["go"] < 20 || count["text"] < 10 {
		t.Errorf("%v blocks: they are not found", count)
	}
}

// What the prose calls by name, such as `pipe.Config.Chunks`, exists.
func TestPageNamesWhatExists(t *testing.T) {
	_, prose := read(t)
	known := map[string]bool{}
	for _, span := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(prose, -1) {
		for _, name := range regexp.MustCompile(`\b([a-z]+)\.([A-Z]\w*(?:\.[A-Z]\w*)?)`).FindAllStringSubmatch(span[1], -1) {
			if _, err := os.Stat(filepath.Join("../..", name[1])); err != nil || known[name[0]] {
				continue // a variable, or a name of another language
			}
			known[name[0]] = true
			if out, err := exec.Command("go", "doc", "../../"+name[1], name[2]).CombinedOutput(); err != nil {
				t.Errorf("`%s`: %s", span[1], out)
			}
		}
	}
	if len(known) < 30 {
		t.Errorf("%d names were checked: they are not found", len(known))
	}
}

// The verbs and flags of the commands on the page exist.
func TestPageShowsCommandsThatExist(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "penstock")
	if out, err := exec.Command("go", "build", "-o", binary, "../../cmd/penstock").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	help, count := map[string]string{}, 0
	words := regexp.MustCompile(`\bpenstock ([a-z]+)((?: [a-z]+\b)?)([^\n]*)`)
	flags := regexp.MustCompile(`--[a-z][a-z0-9-]+`)
	blocks, prose := read(t)
	for _, span := range regexp.MustCompile("`(penstock [^`]+)`").FindAllStringSubmatch(prose, -1) {
		blocks = append(blocks, fenced{"sh", span[1]})
	}
	for _, b := range blocks {
		if b.language != "sh" && b.language != "console" {
			continue
		}
		for _, m := range words.FindAllStringSubmatch(strings.ReplaceAll(b.text, "\\\n", " "), -1) {
			verb := []string{m[1]}
			if slices.Contains([]string{"schedule", "remat", "checkpoint", "plan"}, m[1]) && m[2] != "" {
				verb = append(verb, strings.TrimSpace(m[2]))
			}
			key := strings.Join(verb, " ")
			if help[key] == "" {
				out, _ := exec.Command(binary, append(verb, "--help")...).Output()
				help[key] = string(out)
				if m[1] == "launch" { // takes the flags of train
					out, _ := exec.Command(binary, "train", "--help").Output()
					help[key] += string(out)
				}
			}
			if !strings.Contains(help[key], "penstock "+m[1]) {
				t.Errorf("penstock %s: no such verb", key)
			}
			for _, flag := range flags.FindAllString(m[3], -1) {
				if count++; !regexp.MustCompile(flag + `\b`).MatchString(help[key]) {
					t.Errorf("penstock %s has no %s", key, flag)
				}
			}
		}
	}
	if count < 50 {
		t.Errorf("%d flags were checked: they are not found", count)
	}
}

// Links lead to files of the repository, or to headings of the page.
func TestPageLinksLeadSomewhere(t *testing.T) {
	_, prose := read(t)
	prose = regexp.MustCompile("`[^`]+`").ReplaceAllString(prose, "code")
	anchors := map[string]bool{}
	for _, h := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(prose, -1) {
		slug := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(h[1]), "")
		anchors["#"+strings.ReplaceAll(slug, " ", "-")] = true
	}
	for _, l := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(prose, -1) {
		file, _, _ := strings.Cut(l[1], "#")
		_, err := os.Stat(filepath.Join(filepath.Dir(page), file))
		if !strings.HasPrefix(l[1], "https://") && (strings.HasPrefix(l[1], "#") && !anchors[l[1]] || err != nil) {
			t.Errorf("%s leads nowhere", l[1])
		}
	}
}
