package data_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/must"
)

// openCSV opens a table with settings.
func openCSV(t *testing.T, settings string, lines ...string) (train, test data.Dataset, err error) {
	var o data.Options
	if settings != "" {
		must.Do(t, data.Set("csv", &o, []string{settings}))
	}
	return data.Open("csv", csvFile(t, lines...), o)
}

// A first line that differs in kind from the columns below it has names. Where that cannot be told, and the
// option is not given, the file is refused. Whole numbers are classes, with a point or without.
func TestCSVKinds(t *testing.T) {
	many := func(format string) (lines []string) {
		for i := range 40 {
			lines = append(lines, fmt.Sprintf(format, i))
		}
		return lines
	}
	unclear := "line 1 may have names or numbers; want header=1 or header=0"
	for name, row := range map[string]struct {
		lines    []string
		settings string
		rows     int
		task     data.Task
		classes  []string
		refused  string
	}{
		"numbers and a name": {[]string{"0,1,label", ".5,1,1", ".5,2,0"}, "", 2, data.Classification,
			[]string{"0", "1"}, ""},
		"of a regression": {[]string{"0,1,price", ".5,1,1.5", ".5,2,0"}, "", 2, data.Regression, nil, ""},
		"with an index": {[]string{",0,1,label", "0,.5,1,1", "1,.5,2,0"}, "", 2, data.Classification,
			[]string{"0", "1"}, ""},
		"numbers over text": {[]string{"0,1,2", ".5,1,cat", ".5,2,dog"}, "", 2, data.Classification,
			[]string{"cat", "dog"}, ""},
		"numbers over numbers": {[]string{"0,1,2", ".5,1,0", ".5,2,1"}, "", 0, "", nil, unclear},
		"years over fractions": {[]string{"2019,2020,2021", ".5,1,0", ".5,2,1"}, "", 0, "", nil, unclear},
		"whole numbers in order": {[]string{"1,2,3", "0,4,6"}, "task=classification", 2, data.Classification,
			[]string{"3", "6"}, ""},
		"told to be names": {[]string{"0,1,2", ".5,1,0", ".5,2,1"}, "header=1", 2, data.Classification,
			[]string{"0", "1"}, ""},
		"told to be numbers": {[]string{"0,1,2", ".5,1,0", ".5,2,1"}, "header=0", 3, data.Classification,
			[]string{"0", "1", "2"}, ""},
		"text over text": {[]string{"0,label", ".5,cat", ".5,dog"}, "", 0, "", nil, unclear},
		"a damaged line": {[]string{"red,2,0", "1,2,1", "1,2,0"}, "", 0, "", nil, unclear},
		"a damaged line, told": {[]string{"red,2,0", "1,2,1"}, "header=0", 0, "", nil,
			`line 1, column 1: "red"; want a finite number`},
		"classes as fractions": {[]string{"a,y", "1,1.0", "2,0.0", "3,1"}, "", 3, data.Classification,
			[]string{"0", "1"}, ""},
		"amounts as fractions": {[]string{"a,y", "1,1.0", "2,0.0"}, "task=regression", 2, data.Regression,
			nil, ""},
		"a class of each line": {many("1,%d000.0"), "", 0, "", nil,
			"40 different whole numbers are targets of 40 lines: classes or amounts?"},
		"decimal commas": {[]string{"a;y", "1,5;0", "2,5;1"}, "separator=semicolon", 0, "", nil,
			`line 2, column 1: "1,5" has a decimal comma; want a decimal point`},
		"decimal commas in targets": {[]string{"a\ty", "1\t0,5", "2\t1,5"}, "separator=tab", 0, "", nil,
			`line 2: the target "0,5" has a decimal comma; want a decimal point`},
		"Latin-1": {[]string{"a,pr\xe9s", "1,caf\xe9"}, "", 0, "", nil,
			"line 1, column 5: byte 0xe9 is not UTF-8"},
		"UTF-16": {[]string{"\xff\xfea\x00,\x00y\x00"}, "", 0, "", nil, "it is UTF-16; want text in UTF-8"},
	} {
		train, test, err := openCSV(t, row.settings, row.lines...)
		if row.refused != "" {
			wantError(t, err, "data: csv: ", "a.csv: ", row.refused)
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if info := train.Info(); train.Len()+test.Len() != row.rows || info.Task() != row.task ||
			!slices.Equal(info.ClassNames, row.classes) {
			t.Errorf("%s: %d rows of %+v", name, train.Len()+test.Len(), info)
		}
	}
}

// Numbers are rounded to float32 after they are standardised, not before: seconds since 1970 stay apart.
func TestStandardisedBeforeRounded(t *testing.T) {
	const first, rows = 1_700_000_000, 60
	lines := []string{"t,y"}
	for i := range rows {
		lines = append(lines, fmt.Sprintf("%d,%d", first+i, i%2))
	}
	train, test, err := openCSV(t, "standardise=1", lines...)
	must.Do(t, err)
	distinct, sum, squares := map[float32]bool{}, 0.0, 0.0
	for _, set := range []data.Dataset{train, test} {
		for i := range set.Len() {
			distinct[fill(t, set, i).Input.Float32[0]] = true
		}
	}
	for i := range train.Len() {
		x := float64(fill(t, train, i).Input.Float32[0])
		sum, squares = sum+x, squares+x*x
	}
	if n := float64(train.Len()); len(distinct) != rows || math.Abs(sum/n) > 1e-6 ||
		math.Abs(squares/n-1) > 1e-6 {
		t.Errorf("%d values of mean %g and deviation %g; want %d of 0 and 1", len(distinct), sum/n,
			math.Sqrt(squares/n), rows)
	}

	// An array of the same rows for a model that was trained on the table gives the same inputs.
	info := train.Info()
	var saved data.Info
	must.Do(t, json.Unmarshal(must.Get(json.Marshal(info))(t), &saved))
	path := filepath.Join(t.TempDir(), "x.npy")
	writeFile(t, path, npyOf("<f8", []float64{first, first + 1}, 2, 1))
	inputs := must.Get(data.NewInputs(saved, nil, []string{path}))(t)
	if a := fill(t, inputs, 0, 1).Input.Float32; !distinct[a[0]] || !distinct[a[1]] || a[0] == a[1] {
		t.Errorf("inputs %v", a)
	}
}

// A file that is read as tokens of another width, or with a header of others, is refused before training.
func TestOtherTokens(t *testing.T) {
	narrow, wide, wider := []uint16{}, []uint32{}, []uint64{}
	for i := range 4000 {
		id := i * i % 293
		narrow, wide, wider = append(narrow, uint16(id)), append(wide, uint32(id)), append(wider, uint64(id))
	}
	long := slices.Clone(wide)
	long[7] = 100_000 // with an upper half
	bytesOf := func(numbers any) []byte {
		return must.Get(binary.Append(nil, binary.LittleEndian, numbers))(t)
	}
	begin := make([]byte, 1024) // magic, version, count, zeros
	binary.Encode(begin, binary.LittleEndian, []int32{20240520, 1, 4000})
	other := slices.Clone(begin)
	other[0]++
	const header = "it seems to begin with the header of another format; want tokens alone"
	for name, row := range map[string]struct {
		file     []byte
		settings string
		refused  string
	}{
		"uint16": {bytesOf(narrow), "holdout=0.5", ""},
		"uint32": {bytesOf(wide), "type=uint32", ""},
		"uint32 as uint16": {bytesOf(wide), "holdout=0.5",
			"want type=uint32; or, if they are uint16, type=uint16"},
		"long uint32 as uint16": {bytesOf(long), "holdout=0.5", "want type=uint32"},
		"with classes":          {bytesOf(wide), "classes=300", "want type=uint32"},
		"uint16 it is":          {bytesOf(wide), "type=uint16", ""},
		"int64 as uint16":       {bytesOf(wider), "holdout=0.5", "numpy.array(ids, dtype="},
		"int64 as uint32":       {bytesOf(wider), "type=uint32", "numpy.array(ids, dtype="},
		"uint16 as uint32": {bytesOf(narrow), "type=uint32,classes=300",
			"token 0 is 65536; want 0 to 299"},
		"of a greater vocabulary": {bytesOf(narrow), "classes=200",
			"want 0 to 199: more classes, or another type"},
		"npy":              {npyOf("<u2", narrow, 4000), "holdout=0.5", header},
		"gzip":             {zipped(t, bytesOf(narrow)), "holdout=0.5", header},
		"header of llm.c":  {append(begin, bytesOf(narrow)...), "holdout=0.5", header},
		"header of others": {append(other, bytesOf(narrow)...), "holdout=0.5", header},
		"short, of zeros": {bytesOf(append(make([]uint16, 500), narrow[:100]...)), "holdout=0.5",
			""},
		"header of others, a type": {append(other, bytesOf(narrow)...), "type=uint16", ""},
	} {
		path := filepath.Join(t.TempDir(), "train.bin")
		writeFile(t, path, row.file[:len(row.file)/4*4])
		o := data.Options{Window: 8}
		must.Do(t, data.Set("tokens", &o, []string{row.settings}))
		_, _, err := data.Open("tokens", path, o)
		if row.refused != "" {
			wantError(t, err, path, row.refused)
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Bounds of readers: what takes more is refused, and no error is longer than a screen.
func TestBounds(t *testing.T) {
	long := strings.Repeat("z", 10<<20)
	for name, row := range map[string]struct {
		set, settings, file string
		content             []byte
		want                string
	}{
		"a long cell": {"csv", "", "train.csv", []byte("a,y\n1,0\n" + long + ",1\n"), "want a finite number"},
		"a long name": {"csv", "target=b", "train.csv", []byte("a," + long + "\n1,0\n"), `no column "b"`},
		"many columns": {"csv", "", "train.csv", bytes.Repeat([]byte("0,"), 1<<16),
			"line 1: 65537 columns; want at most 65536"},
		"long classes": {"csv", "task=regression", "train.csv", []byte("a,y\n1," + long + "\n2,0\n"),
			"want a finite number"},
		"large samples": {"synthetic", "size=16384,channels=4096", "none", nil,
			"a sample has 1099511627776 numbers; want at most 67108864"},
		"many samples": {"synthetic", "train=2000000000", "none", nil,
			"want a whole number from 1 to 67108864"},
	} {
		o, directory := data.Options{}, directoryOf(t, map[string][]byte{row.file: row.content})
		err := error(nil)
		if row.settings != "" {
			err = data.Set(row.set, &o, []string{row.settings})
		}
		if err == nil {
			_, _, err = data.Open(row.set, directory, o)
		}
		if wantError(t, err, row.want); err != nil && len(err.Error()) > 2000 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
	_, _, err := data.Synthetic{Train: 2_000_000_000}.Open()
	wantError(t, err, "Train is 2000000000; want 1 to 67108864")
}

// A small compressed file may unpack to any size.
func TestUnzippedIsBounded(t *testing.T) {
	_, err := data.DecodeIDX(bytes.Repeat(zipped(t, make([]byte, 32<<20)), 9))
	wantError(t, err, "the gzip data: it has more than 268435456 bytes")
}
