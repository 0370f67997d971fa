// Package examples holds programs that are read before they are run. Its test keeps the README's copy of the first one true.
package examples

import (
	"os"
	"strings"
	"testing"
)

func TestReadmeShowsTheProgramThatCompiles(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("own/main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(program), "func main() {")
	if !strings.Contains(string(readme), "func main() {"+body) {
		t.Error("the README's program is not examples/own/main.go")
	}
}
