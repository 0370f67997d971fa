package shim_test

import (
	"go/build"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/must"
)

// cgo compiles all C++ of a package when any of its files changes. So package shim has none, and
// package native, which has all, has no Go that would change.
func TestAChangeInGoCompilesNoCpp(t *testing.T) {
	face := must.Get(build.ImportDir(".", 0))(t)
	if c := slices.Concat(face.CFiles, face.CXXFiles, face.HFiles); len(c) > 0 {
		t.Errorf("package shim has %v; want all of C++ in package native", c)
	}
	native := must.Get(build.ImportDir("native", 0))(t)
	files := slices.Concat(native.GoFiles, native.CgoFiles, native.TestGoFiles, native.IgnoredGoFiles)
	if slices.Sort(files); !slices.Equal(files, []string{"cuda.go", "native.go"}) {
		t.Errorf("package native has %v; want native.go and cuda.go alone", files)
	}
	for _, f := range files {
		text := must.Get(os.ReadFile("native/" + f))(t)
		if strings.Contains(string(text), "\nfunc ") {
			t.Errorf("%s has a function; want Go in package shim", f)
		}
	}
}

// Files in the folders of package native are compiled by the units of the same names, and only they. A
// unit that forgot one would link all the same if nothing called it.
func TestUnitsIncludeTheirFolders(t *testing.T) {
	units, err := filepath.Glob("native/*.cpp")
	if err != nil || len(units) != 2 {
		t.Fatalf("units %v, %v; want two, one for each core", units, err)
	}
	for _, unit := range units {
		text := must.Get(os.ReadFile(unit))(t)
		folder := strings.TrimSuffix(unit, ".cpp")
		files, err := filepath.Glob(folder + "/*.cpp")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: files %v, %v", folder, files, err)
		}
		for _, f := range files {
			line := `#include "` + filepath.Base(folder) + "/" + filepath.Base(f) + `"`
			if strings.Count(string(text), line+"\n") != 1 {
				t.Errorf("%s: want one line %s", unit, line)
			}
		}
	}
}

// A build without cgo or without libtorch ends with an error that names the packages to install.
func TestBuildsThatLackSomething(t *testing.T) {
	for _, row := range []struct{ name, line string }{
		{"cgo", "CGO_ENABLED=0 go build ."},
		{"libtorch", "${CXX:-g++} -std=c++20 -fsyntax-only -nostdinc -Inative -Wfatal-errors " +
			"native/runtime.cpp"},
	} {
		out, err := exec.Command("sh", "-c", row.line).CombinedOutput()
		if err == nil || !strings.Contains(string(out), row.name) ||
			!strings.Contains(string(out), "libtorch-dev") {
			t.Errorf("without %s: %v: %s", row.name, err, out)
		}
	}
}
