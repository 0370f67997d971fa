package metrics_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"

	"penstock.example/internal/metrics"
)

// records reads an event file as record_reader.cc does, and the fields of each Event in their order as
// number=value, of messages within each other too. The time of the first event is left out.
func records(t *testing.T, path string) (events []string) {
	t.Helper()
	content, err := os.ReadFile(path)
	ok(t, err)
	unmasked := func(b []byte) uint32 {
		rotated := binary.LittleEndian.Uint32(b) - 0xa282ead8
		return rotated>>17 | rotated<<15
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	for r := bytes.NewBuffer(content); r.Len() > 0; {
		head := r.Next(12)
		message := slices.Clone(r.Next(int(binary.LittleEndian.Uint64(head))))
		if unmasked(head[8:]) != crc32.Checksum(head[:8], table) ||
			unmasked(r.Next(4)) != crc32.Checksum(message, table) {
			t.Fatalf("record %d: a checksum is wrong", len(events))
		}
		events = append(events, fields(t, message, len(events) == 0))
	}
	return events
}

func fields(t *testing.T, message []byte, untimed bool) string {
	var out []string
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		message = message[n:]
		var value any
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(message)
		case protowire.Fixed32Type:
			bits, size := protowire.ConsumeFixed32(message)
			value, n = math.Float32frombits(bits), size
		case protowire.Fixed64Type:
			bits, size := protowire.ConsumeFixed64(message)
			if value, n = fmt.Sprintf("%.3f", math.Float64frombits(bits)), size; untimed {
				value = "now"
			}
		case protowire.BytesType:
			text, size := protowire.ConsumeBytes(message)
			if value, n = string(text), size; text[0] < ' ' {
				value = "{" + fields(t, text, untimed) + "}"
			}
		}
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		message = message[n:]
		out = append(out, fmt.Sprintf("%d=%v", number, value))
	}
	return strings.Join(out, " ")
}

// Scalars are what was measured, and a resumed run voids the steps that it takes again.
func TestEvents(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "logs")
	devices := []string{"cpu:0", "cpu:1"}
	e, err := metrics.OpenEvents(dir, devices, 0)
	ok(t, err)
	ok(t, e.Step(step(1)), e.Step(step(2)), e.Test(test(2)), e.Sync(), e.Close())
	again, err := metrics.OpenEvents(dir, devices, 1)
	ok(t, err)
	ok(t, again.Step(step(2)), again.Close())

	names, err := os.ReadDir(dir)
	ok(t, err)
	if len(names) != 2 { // in the order of names, which TensorBoard goes by
		t.Fatalf("%d files", len(names))
	}
	// wall_time is 1, step 2, file_version 3, summary 5 and session_log 7; of a summary's value 1 the tag
	// is 1 and the number 2.
	const first = "1=1763838001.125 2=1 5={1={1=loss 2=1} 1={1=learning_rate 2=0.1} " +
		"1={1=samples_per_second 2=100} 1={1=peak_bytes/cpu:0 2=1.048576e+06} 1={1=peak_bytes/cpu:1 2=5}}"
	const second = "1=1763838002.125 2=2 5={1={1=loss 2=0.5} 1={1=learning_rate 2=0.1} 1={1=grad_norm " +
		"2=0.6666667} " +
		"1={1=samples_per_second 2=100} 1={1=peak_bytes/cpu:0 2=2.097152e+06} 1={1=peak_bytes/cpu:1 2=5}}"
	for i, want := range [][]string{
		{"1=now 3=brain.Event:2", first, second, "1=1763838002.500 2=2 5={1={1=accuracy 2=0.6666667}}"},
		{"1=now 3=brain.Event:2", "1=now 2=2 7={1=1}", second},
	} {
		got := records(t, filepath.Join(dir, names[i].Name()))
		if i == 1 {
			got[1] = "1=now" + got[1][strings.Index(got[1], " "):]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("file %d: %s", i, diff)
		}
	}
}
