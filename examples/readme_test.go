// Package examples holds programs that are read before they are run. Its test keeps the README's copy of the first one true.
package examples

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The README's first program is examples/own, which compiles, and what the README says that it prints is what the example's test sees it print.
func TestReadmeShowsTheProgramThatRuns(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	readme, program, test := read("../README.md"), read("own/main.go"), read("own/main_test.go")
	from := strings.Index(program, "func main() {")
	if from < 0 || !strings.Contains(readme, "```go\n"+program[from:]+"```\n") {
		t.Error("the README's program is not examples/own/main.go from func main on")
	}
	if lines := strings.Count(program[from:][:strings.Index(program[from:], "\n}\n")], "\n") + 2; lines > 20 {
		t.Errorf("func main has %d lines, want at most 20", lines)
	}
	_, output, _ := strings.Cut(test, "// Output:\n")
	output = regexp.MustCompile(`(?m)^\t// (.*)\n`).ReplaceAllString(strings.TrimSuffix(output, "}\n"), "    $1\n")
	if len(output) < 100 || !strings.Contains(readme, "\n\n"+output+"\n") {
		t.Errorf("the README does not state the program's output:\n%s", output)
	}
	for _, ignored := range regexp.MustCompile(`_(, err)? :?= |^\s*(p\.|defer p\.)`).FindAllString(program, -1) {
		t.Errorf("the program ignores an error: %q", ignored)
	}
}
