// Package examples holds programs that are read before they are run. Its tests keep the documents
// true.
package examples

import (
	"os"
	"regexp"
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

// Each file that ARCHITECTURE.md names exists.
func TestArchitectureNamesFilesThatExist(t *testing.T) {
	text, err := os.ReadFile("../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## Where to find")
	table, _, _ = strings.Cut(table, "\n## ")
	names := regexp.MustCompile("`([a-z][^` ]*[/.][^` ]*)`").FindAllStringSubmatch(table, -1)
	for _, m := range names {
		if _, err := os.Stat("../" + m[1]); err != nil {
			t.Errorf("ARCHITECTURE.md: %v", err)
		}
	}
	if len(names) < 60 {
		t.Errorf("%d files were looked for: they are not found", len(names))
	}
}
