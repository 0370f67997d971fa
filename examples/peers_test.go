package examples

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// peers is how many tests each file of theirs has, or adds to those before it. What torchgpipe's
// add up to is the number that its suite runs, parametrised ones counted once: 167.
var peers = []struct {
	suite string
	files map[string]int
}{
	{"torchgpipe", map[string]int{
		"tests/test_gpipe.py": 32, "tests/test_pipeline.py": 2, "tests/test_checkpoint.py": 6, "tests/test_dependency.py": 6, "tests/test_microbatch.py": 10, "tests/test_phony.py": 4,
		"tests/test_copy.py": 5, "tests/test_stream.py": 19, "tests/test_worker.py": 7, "tests/test_transparency.py": 1, "tests/test_inplace.py": 3, "tests/test_bugs.py": 4,
		"tests/test_deferred_batch_norm.py": 7, "tests/test_balance.py": 16, "tests/skip/test_api.py": 3, "tests/skip/test_gpipe.py": 2, "tests/skip/test_inspect_skip_layout.py": 6,
		"tests/skip/test_leak.py": 2, "tests/skip/test_portal.py": 10, "tests/skip/test_stash_pop.py": 7, "tests/skip/test_tracker.py": 6, "tests/skip/test_verify_skippables.py": 9,
	}},
	{"fairscale, beyond those", map[string]int{
		"tests/nn/pipe/test_pipe.py": 4, "tests/nn/pipe/test_checkpoint.py": 1, "tests/nn/pipe/test_parity.py": 1, "tests/nn/pipe/test_checkpoint_ddp.py": 5, "tests/nn/pipe/test_phony.py": 1,
		"tests/nn/pipe_process/test_pipe.py": 38, "tests/nn/pipe_process/test_bugs.py": 4, "tests/nn/pipe_process/test_inplace.py": 3, "tests/nn/pipe_process/test_transparency.py": 1,
		"tests/nn/pipe_process/test_rpc.py": 6, "tests/experimental/nn/ampnet_pipe_process/test_ampnet_pipe.py": 2, "tests/experimental/nn/test_multiprocess_pipe.py": 11,
		"tests/nn/checkpoint/test_checkpoint_activations.py": 7, "tests/nn/checkpoint/test_checkpoint_activations_norm.py": 1,
	}},
	{"PyTorch, beyond those", map[string]int{
		"test/distributed/pipeline/sync/test_pipe.py": 13, "torch/testing/_internal/distributed/pipe_with_ddp_test.py": 1,
	}},
	{"PyTorch's pipelining", map[string]int{"test/distributed/pipelining/test_backward.py": 15, "test/distributed/pipelining/test_stage.py": 20, "test/distributed/pipelining/test_schedule.py": 60}},
}

const peersPage = "../docs/peers.md"

var (
	heading = regexp.MustCompile("^### `(.+)`$")
	row     = regexp.MustCompile("^\\| `([^`]+)` \\| (.+) \\| ?(.*)\\|$")
	cited   = regexp.MustCompile("`([a-z/]+)\\.((?:Test|Example)\\w+)`")
)

// entry is a row of the page: a test of theirs, what is named for it, and the remark.
type entry struct{ name, here, remark string }

// peersTables reads the rows below each heading that is a file of theirs.
func peersTables(t *testing.T) (page string, tables map[string][]entry) {
	t.Helper()
	data, err := os.ReadFile(peersPage)
	if err != nil {
		t.Fatal(err)
	}
	tables = map[string][]entry{}
	file := ""
	for _, line := range strings.Split(string(data), "\n") {
		if strings.HasPrefix(line, "#") {
			file = ""
			if m := heading.FindStringSubmatch(line); m != nil {
				if file = m[1]; tables[file] != nil {
					t.Errorf("%s has two tables of %s", peersPage, file)
				}
			}
		}
		if m := row.FindStringSubmatch(line); m != nil && file != "" {
			tables[file] = append(tables[file], entry{m[1], m[2], m[3]})
		}
	}
	return string(data), tables
}

// Each test of theirs has a row, and each row a test of ours or the word for there being none; and the counts at the top of the page are those of its rows.
func TestPeersHaveARowForEachTest(t *testing.T) {
	page, tables := peersTables(t)
	for _, p := range peers {
		total, with, replaced, absent := 0, 0, 0, 0
		for file, want := range p.files {
			if got := len(tables[file]); got != want {
				t.Errorf("%s has %d rows of %s, whose tests are %d", peersPage, got, file, want)
			}
			seen := map[string]bool{}
			for _, e := range tables[file] {
				if seen[e.name] {
					t.Errorf("%s has %s of %s twice", peersPage, e.name, file)
				}
				seen[e.name] = true
				total++
				switch {
				case cited.MatchString(e.here):
					with++
				case e.here == "-" && strings.HasPrefix(e.remark, "*No such thing*"):
					replaced++
				case e.here == "-" && strings.HasPrefix(e.remark, "*Absent*"):
					absent++
				default:
					t.Errorf("%s: %s of %s has neither a test nor the reason why there is none", peersPage, e.name, file)
				}
			}
			delete(tables, file)
		}
		if want := fmt.Sprintf("| %s | %d | %d | %d | %d |\n", p.suite, total, with, replaced, absent); !strings.Contains(page, want) {
			t.Errorf("%s does not count %s", peersPage, want)
		}
	}
	for file := range tables {
		t.Errorf("%s has a table of %s, which is no file of theirs", peersPage, file)
	}
}

// Each test that the page names is in the package that it names.
func TestPeersNameTestsThatExist(t *testing.T) {
	page, _ := peersTables(t)
	functions := map[string]map[string]bool{} // by package
	names := cited.FindAllStringSubmatch(page, -1)
	for _, m := range names {
		name, function := m[1], m[2]
		if functions[name] == nil {
			functions[name] = testsOf(t, name)
		}
		if !functions[name][function] {
			t.Errorf("%s names %s.%s, which does not exist", peersPage, name, function)
		}
	}
	if len(names) < 200 {
		t.Errorf("%s names %d tests; were they read?", peersPage, len(names))
	}
}

// testsOf lists the functions of a package's test files.
func testsOf(t *testing.T, name string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("../" + name + "/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				out[f.Name.Name] = true
			}
		}
	}
	return out
}
