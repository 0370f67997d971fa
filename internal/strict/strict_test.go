package strict_test

import (
	"errors"
	"strings"
	"testing"

	"penstock.example/internal/strict"
)

type file struct {
	Version int     `json:"version"`
	Name    string  `json:"name,omitzero"`
	Share   float64 `json:"share,omitzero"`
	Bytes   *int64  `json:"bytes,omitzero"`
	List    []part  `json:"list,omitzero"`
}

type part struct {
	Good bool `json:"good"`
}

func TestUnmarshal(t *testing.T) {
	long := strings.Repeat("z", 1<<20)
	for text, want := range map[string]string{ // the path and a part of the reason; "" is none
		`{"version":1}`:                          "",
		` {"list":[{"good":true}],"version":1} `: "",
		``:                                       " unexpected EOF",
		`[]`:                                     " an array; want an object",
		`null`:                                   " null; want an object",
		`{"version":1`:                           " unexpected EOF",
		`{"version":1}{}`:                        " want JSON",
		`{"version":1,}`:                         " want JSON",
		"{\"version\":1,\"name\":\"\xff\"}":      "name UTF-8",
		`{"version":1,"other":2}`:                "other unknown field",
		`{"Version":1}`:                          "Version unknown field",
		`{"version":1,"version":1}`:              "version duplicate",
		`{}`:                                     ` "version" is missing`,
		`{"version":1,"` + long + `":1}`:         long + " unknown field",
		`{"version":null}`:                       "version null; want a whole number",
		`{"version":1.0}`:                        "version 1.0; want a whole number",
		`{"version":1e3}`:                        "version 1e3",
		`{"version":"1"}`:                        "version a text; want a whole number",
		`{"version":1,"name":2}`:                 "name a number; want a text",
		`{"version":1,"share":1e999}`:            "share 1e999; want a number",
		`{"version":1,"share":NaN}`:              "share want JSON",
		`{"version":1,"bytes":9223372036854775808}`: "bytes 9223372036854775808",
		`{"version":1,"bytes":null}`:                "bytes null",
		`{"version":1,"list":{}}`:                   "list an object; want an array",
		`{"version":1,"list":[{"good":true},{}]}`:   `list[1] "good" is missing`,
		`{"version":1,"list":[{"good":1}]}`: "list[0].good a number; want true " +
			"or false",
		`{"version":1,"list":[7]}`:                                    "list[0] a number; want an object",
		`{"version":1,"name":["` + strings.Repeat("long", 99) + `"]}`: "name an array; want a text",
	} {
		err := strict.Unmarshal([]byte(text), new(file))
		var fault *strict.Error
		path, reason, _ := strings.Cut(want, " ")
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", text, err)
			}
		} else if !errors.As(err, &fault) || fault.Path != path || !strings.Contains(fault.Reason, reason) ||
			len(err.Error()) > 2000 {
			t.Errorf("%.200s: %.2000v; want %.200q", text, err, want)
		}
	}
	var fault *strict.Error
	if err := strict.Unmarshal([]byte("{\"version\":1,\n\"list\":[\n{\"good\":true},\n{]}"),
		new(file)); !errors.As(err, &fault) || fault.Line != 4 {
		t.Errorf("%v; want it on line 4", err)
	}
}

func TestLines(t *testing.T) {
	in := file{Version: 1, Name: "<a>", List: []part{{true}, {}}}
	text, err := strict.Lines(in)
	if want := "{\"version\":1,\n\"name\":\"<a>\",\n\"list\":[\n{\"good\":true},\n{\"good\":false}\n]}\n"; err != nil || string(text) != want {
		t.Errorf("%v: %s", err, text)
	}
}
