package examples

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each row of docs/peers.md names tests that exist here, or the reason why there is none, and the counts
// at the top of the page are the counts of its rows. torchgpipe's suite has 167 tests, parametrised ones
// counted once.
func TestPeersNameTestsThatExist(t *testing.T) {
	data, err := os.ReadFile("../docs/peers.md")
	if err != nil {
		t.Fatal(err)
	}
	suites := map[string]string{"torchgpipe": "torchgpipe", "fairscale": "fairscale, beyond those",
		"PyTorch": "PyTorch, beyond those", "torch.distributed.pipelining": "PyTorch's pipelining"}
	row := regexp.MustCompile("^\\| `([^`]+)` \\| (.+) \\| ?(.*)\\|$")
	cited := regexp.MustCompile("`([a-z/]+)\\.((?:Test|Example)\\w+)`")
	type counts struct{ total, with, replaced, absent int }
	found, seen := map[string]*counts{}, map[string]bool{}
	var suite, file string
	for _, line := range strings.Split(string(data), "\n") {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			suite, file = suites[name], ""
			found[suite] = &counts{}
		}
		if name, ok := strings.CutPrefix(line, "### "); ok {
			file = name
		}
		for _, m := range cited.FindAllStringSubmatch(line, -1) {
			if !testExists(t, m[1], m[2]) {
				t.Errorf("%s.%s does not exist", m[1], m[2])
			}
		}
		m := row.FindStringSubmatch(line)
		if m == nil || suite == "" || file == "" {
			continue
		}
		if seen[file+m[1]] {
			t.Errorf("%s of %s is there twice", m[1], file)
		}
		seen[file+m[1]] = true
		n := found[suite]
		n.total++
		switch {
		case cited.MatchString(m[2]):
			n.with++
		case m[2] == "-" && strings.HasPrefix(m[3], "*No such thing*"):
			n.replaced++
		case m[2] == "-" && strings.HasPrefix(m[3], "*Absent*"):
			n.absent++
		default:
			t.Errorf("%s of %s has neither a test nor the reason why there is none", m[1], file)
		}
	}
	for _, suite := range suites {
		n := found[suite]
		want := fmt.Sprintf("| %s | %d | %d | %d | %d |\n", suite, n.total, n.with, n.replaced, n.absent)
		if n.total == 0 || !strings.Contains(string(data), want) {
			t.Errorf("docs/peers.md does not count %s", want)
		}
	}
}

var testSources = map[string]string{} // by package

// testExists reports whether a package has a test.
func testExists(t *testing.T, name, function string) bool {
	if testSources[name] == "" {
		files, err := filepath.Glob("../" + name + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			testSources[name] += string(text)
		}
	}
	return strings.Contains(testSources[name], "\nfunc "+function+"(")
}
