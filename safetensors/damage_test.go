package safetensors_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/safetensors"
)

func TestDamagedFiles(t *testing.T) {
	entry := func(fields string) []byte { return raw(`{"w":{`+fields+`}}`, "x") }
	const u8 = `"dtype":"U8","shape":[1],`
	var many strings.Builder
	for i := range 1<<18 + 1 {
		fmt.Fprintf(&many, `,"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, i)
	}
	for _, row := range []struct {
		file []byte
		want string
	}{
		{raw("{"+many.String()[1:]+"}", ""), "it has 262145 tensors; want at most 262144"},
		{[]byte{1, 2, 3}, "reading the header's length: unexpected EOF"},
		{[]byte("PK\x03\x04\x00\x00\x08\x08rest"),
			"it is a file of PyTorch; want the state_dict that it holds"},
		{[]byte("\x80\x02\x8a\nl\xfc\x9cFrest"), "it is a file of PyTorch; want"},
		{[]byte("\xff\xff\xff\xff\xff\xff\xff\xff{}"),
			"length is 18446744073709551615; want at most 100000000"},
		{raw(`{"w":`, "")[:10], "length is 5; want at most 100000000, and no more than the 2 bytes that " +
			"follow"},
		{raw("", ""), "unexpected EOF"},
		{raw("[]", ""), "unmarshal JSON array"},
		{raw(`{}{}`, ""), "after top-level value"},
		{raw("{\"\xff\":0}", ""), "invalid UTF-8"},
		{raw(`{"w":{`+u8+`"data_offsets":[0,1]},"\u0077":{`+u8+`"data_offsets":[0,1]}}`, "x"),
			`duplicate object member name "w"`},
		{raw(`{"__metadata__":{"a":"1","a":"1"}}`, ""), `duplicate object member name "a"`},
		{entry(u8 + `"shape":[1],"data_offsets":[0,1]`), `duplicate object member name "shape"`},
		{raw(`{"__metadata__":{"a":1}}`, ""), `JSON number into Go string`},
		{raw(`{"w":[1]}`, ""), `unmarshal JSON array`},
		{entry(u8 + `"stride":[1],"data_offsets":[0,1]`), `unknown object member name "stride"`},
		{entry(`"DTYPE":"U8","shape":[1],"data_offsets":[0,1]`), `unknown object member name "DTYPE"`},
		{entry(`"shape":[1],"data_offsets":[0,1]`), `tensor "w": want dtype, shape and two data_offsets`},
		{entry(`"dtype":"U8","shape":null,"data_offsets":[0,1]`), "want dtype, shape and two data_offsets"},
		{entry(`"dtype":"F4","shape":[1],"data_offsets":[1,0]`), `not data_offsets [1 0]`},
		{entry(`"dtype":"` + strings.Repeat("z", 10<<20) + `","shape":[1],"data_offsets":[1,0]`),
			"not data_offsets"},
		{raw(`{"`+strings.Repeat("z", 10<<20)+`":[]}`, ""), "unmarshal JSON array"},
		{entry(`"dtype":"U8","shape":[-1],"data_offsets":[0,1]`), "dimension 0 of shape [-1] is negative"},
		{entry(`"dtype":"U8","shape":[1.0],"data_offsets":[0,1]`), `1.0 into Go int64`},
		{entry(`"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]`), "overflows"},
		{entry(u8 + `"data_offsets":[0,1,2]`), "two data_offsets"},
		{entry(u8 + `"data_offsets":[1,0]`), "shape [1] of U8 takes 1 bytes, not data_offsets [1 0]"},
		{entry(`"dtype":"F32","shape":[2,3],"data_offsets":[0,20]`),
			"shape [2 3] of F32 takes 24 bytes, not data_offsets [0 20]"},
		{entry(`"dtype":"U8","shape":[4],"data_offsets":[0,4]`),
			`tensor "w": data_offsets [0 4]; want them from 0 on, and at most the 1 bytes of data in the ` +
				`file`},
		{raw(`{}`, "x"), "1 bytes follow the last tensor"},
		{raw(`{"v":{`+u8+`"data_offsets":[0,1]},"w":{`+u8+`"data_offsets":[2,3]}}`, "xyz"),
			`data_offsets [2 3]; want them from 1 on`},
		{raw(`{"v":{`+u8+`"data_offsets":[0,1]},"w":{`+u8+`"data_offsets":[0,1]}}`, "x"),
			`data_offsets [0 1]; want them from 1 on`},
	} {
		path := filepath.Join(t.TempDir(), "w.safetensors")
		must.Do(t, os.WriteFile(path, row.file, 0o644))
		_, err := safetensors.Open(path)
		if err == nil || !strings.HasPrefix(err.Error(), "safetensors: "+path+": ") ||
			!strings.Contains(err.Error(), row.want) || len(err.Error()) > 2000 {
			t.Errorf("%.200q: %.2000v, want %q", row.file, err, row.want)
		}
	}
	file := must.Get(parse(raw(`{"m":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}}`, "\x01\x02")))(t)
	if _, err := file.Read("m"); err == nil ||
		!strings.Contains(err.Error(), `tensor "m": bytes 63 to 65: element 1 of BOOL is the byte 2, `+
			`expected 0 or 1`) {
		t.Error(err)
	}
}

// A file may shrink between the index and the reading.
func TestFileThatShrinks(t *testing.T) {
	whole := raw(smallHeader, smallData)
	file := must.Get(safetensors.NewFile(bytes.NewReader(whole[:len(whole)-1]), int64(len(whole))))(t)
	if _, err := file.Read("a.mask"); !errors.Is(err, io.ErrUnexpectedEOF) ||
		!strings.Contains(err.Error(), "a.mask") {
		t.Errorf("error %v, want an unexpected EOF for a.mask", err)
	}
}
