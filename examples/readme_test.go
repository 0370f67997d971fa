// Package examples holds programs that are read before they are run. Its tests keep the documents
// true.
package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The README's code is lines of examples/own, and the losses that it states are printed by that program.
func TestReadmeShowsTheProgramThatRuns(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	readme, program, test := read("../README.md"), read("own/main.go"), read("own/main_test.go")
	_, code, _ := strings.Cut(readme, "```go\n")
	code, _, found := strings.Cut(code, "```\n")
	if lines := strings.Count(code, "\n"); !found || lines > 12 || !strings.Contains(program, "\n"+code) {
		t.Errorf("the README's %d lines of code are not in examples/own/main.go", lines)
	}
	losses := regexp.MustCompile(`losses from (\S+) down to (\S+)\.`).FindStringSubmatch(readme)
	if losses == nil || !strings.Contains(test, "step 0  loss "+losses[1]+"\n") ||
		!strings.Contains(test, "step 4  loss "+losses[2]+"\n") {
		t.Errorf("the README states losses of %q, which the program does not print", losses)
	}
}

// ARCHITECTURE.md names one file for each concept. The file exists, and has the names beside it.
func TestArchitectureNamesFilesThatExist(t *testing.T) {
	page, err := os.ReadFile("../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	for _, row := range rows {
		if strings.HasPrefix(row, "| **") {
			continue // a heading
		}
		columns := regexp.MustCompile("^\\| (.+) \\| `([a-z][^` ]+)` \\|$").FindStringSubmatch(row)
		if columns == nil {
			t.Errorf("ARCHITECTURE.md: %q is no concept with one file", row)
			continue
		}
		text, err := os.ReadFile("../" + columns[2])
		if err != nil {
			t.Errorf("ARCHITECTURE.md: %v", err)
			continue
		}
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(columns[1], -1) {
			if !strings.Contains(string(text), name[1]) {
				t.Errorf("ARCHITECTURE.md: there is no %s in %s", name[1], columns[2])
			}
		}
	}
	if len(rows) < 60 {
		t.Errorf("the table has %d rows: it is not found", len(rows))
	}
}

// Each test that docs/peers.md names exists.
func TestPeersNamesTestsThatExist(t *testing.T) {
	page, err := os.ReadFile("../docs/peers.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`([a-z0-9/]+)\\.(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(page), -1)
	for _, name := range names {
		files, err := filepath.Glob("../" + name[1] + "/*_test.go")
		if err != nil || !slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(text), "\nfunc "+name[2]+"(")
		}) {
			t.Errorf("docs/peers.md: there is no %s in %s", name[2], name[1])
		}
	}
	if len(names) < 15 {
		t.Errorf("%d tests are named", len(names))
	}
}

// The guide's lines make a module of one's own find Penstock and all that it needs.
func TestAModuleOfOnesOwn(t *testing.T) {
	page, err := os.ReadFile("../docs/guide.md")
	if err != nil {
		t.Fatal(err)
	}
	_, lines, _ := strings.Cut(string(page), "```sh\ngo mod edit")
	lines, _, found := strings.Cut(lines, "```")
	root, err := filepath.Abs("..")
	if err != nil || !found {
		t.Fatal(err, found)
	}
	lines = "cp " + root + "/examples/own/main.go . && go mod init own\ngo mod edit" +
		strings.ReplaceAll(lines, "/path/to/penstock", root) + "go list -deps . >deps"
	command := exec.Command("sh", "-ec", lines)
	command.Dir = t.TempDir()
	command.Env = append(os.Environ(), "GOPROXY=off", "GONOSUMDB=*", "GOWORK=off",
		"PWD="+command.Dir)
	if text, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, text)
	}
}
