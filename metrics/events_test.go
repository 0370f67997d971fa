package metrics_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"penstock.example/metrics"
)

// eventSchema is what TensorBoard's event.proto and summary.proto say of the fields that are
// written.
const eventSchema = `
name: "event.proto" package: "tensorboard" syntax: "proto3"
message_type {
  name: "Event"
  field { name: "wall_time" number: 1 type: TYPE_DOUBLE label: LABEL_OPTIONAL }
  field { name: "step" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "file_version" number: 3 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "summary" number: 5 type: TYPE_MESSAGE type_name: ".tensorboard.Summary" label: LABEL_OPTIONAL }
  field { name: "session_log" number: 7 type: TYPE_MESSAGE type_name: ".tensorboard.SessionLog" label: LABEL_OPTIONAL }
}
message_type {
  name: "Summary"
  field { name: "value" number: 1 type: TYPE_MESSAGE type_name: ".tensorboard.Summary.Value" label: LABEL_REPEATED }
  nested_type {
    name: "Value"
    field { name: "tag" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "simple_value" number: 2 type: TYPE_FLOAT label: LABEL_OPTIONAL }
  }
}
message_type {
  name: "SessionLog"
  field { name: "status" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
}`

func eventType(t *testing.T) protoreflect.MessageDescriptor {
	t.Helper()
	var schema descriptorpb.FileDescriptorProto
	ok(t, prototext.Unmarshal([]byte(eventSchema), &schema))
	file, err := protodesc.NewFile(&schema, nil)
	ok(t, err)
	return file.Messages().ByName("Event")
}

// records reads an event file as record_reader.cc does, and every Event by the schema, strictly.
func records(t *testing.T, path string) (events []string) {
	t.Helper()
	content, err := os.ReadFile(path)
	ok(t, err)
	unmasked := func(b []byte) uint32 {
		rotated := binary.LittleEndian.Uint32(b) - 0xa282ead8
		return rotated>>17 | rotated<<15
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	kind := eventType(t)
	for r := bytes.NewBuffer(content); r.Len() > 0; {
		head := r.Next(12)
		length := int(binary.LittleEndian.Uint64(head))
		if got := unmasked(head[8:]); got != crc32.Checksum(head[:8], table) {
			t.Fatalf("record %d: the length's checksum is wrong", len(events))
		}
		message := slices.Clone(r.Next(length))
		if got := unmasked(r.Next(4)); got != crc32.Checksum(message, table) {
			t.Fatalf("record %d: the checksum is wrong", len(events))
		}
		event := dynamicpb.NewMessage(kind)
		ok(t, proto.Unmarshal(message, event))
		event.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			if m, ok := v.Interface().(protoreflect.Message); ok && len(m.GetUnknown()) > 0 {
				t.Errorf("%s has unknown fields", f.Name())
			}
			return true
		})
		if len(event.GetUnknown()) > 0 {
			t.Error("an event has unknown fields")
		}
		events = append(events, words(event))
	}
	return events
}

// words is an Event as text. The time of what is not about a step is any.
func words(event protoreflect.Message) string {
	get := func(m protoreflect.Message, name protoreflect.Name) protoreflect.Value {
		return m.Get(m.Descriptor().Fields().ByName(name))
	}
	if version := get(event, "file_version").String(); version != "" {
		return version
	}
	step := get(event, "step").Int()
	if status := get(get(event, "session_log").Message(), "status").Int(); status != 0 {
		return fmt.Sprintf("step %d status %d", step, status)
	}
	out := fmt.Sprintf("step %d at %.3f", step, get(event, "wall_time").Float())
	values := get(get(event, "summary").Message(), "value").List()
	for i := range values.Len() {
		v := values.Get(i).Message()
		out += fmt.Sprintf(" %s=%.7g", get(v, "tag").String(), get(v, "simple_value").Float())
	}
	return out
}

// The first record is, but for its time, what every event file of TensorFlow begins with.
func TestEventsBeginAsTensorFlows(t *testing.T) {
	dir := t.TempDir()
	e, err := metrics.OpenEvents(dir, nil, 0)
	ok(t, err)
	ok(t, e.Close())
	content, err := os.ReadFile(only(t, dir))
	ok(t, err)
	const length, version = "1800000000000000" + "a37f4b22" + "09", "1a0d" + "627261696e2e4576656e743a32"
	if got := hex.EncodeToString(content); !strings.HasPrefix(got, length) || !strings.Contains(got, version) {
		t.Errorf("it begins with %s, want %s... %s", got, length, version)
	}
}

// only is the one file of a directory.
func only(t *testing.T, dir string) string {
	t.Helper()
	files, err := os.ReadDir(dir)
	ok(t, err)
	if len(files) != 1 {
		t.Fatalf("%d files in %s", len(files), dir)
	}
	return filepath.Join(dir, files[0].Name())
}

// Scalars are what was measured, and a resumed run voids the steps that it takes again.
func TestEvents(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "logs")
	devices := []string{"cpu:0", "cpu:1"}
	e, err := metrics.OpenEvents(dir, devices, 0)
	ok(t, err)
	ok(t, e.Step(step(1)), e.Step(step(2)), e.Test(test(2)), e.Test(test(2)), e.Sync(), e.Close())
	again, err := metrics.OpenEvents(dir, devices, 1)
	ok(t, err)
	ok(t, again.Step(step(2)), again.Close())

	names, err := os.ReadDir(dir)
	ok(t, err)
	if len(names) != 2 { // in the order of names, which TensorBoard goes by
		t.Fatalf("%d files", len(names))
	}
	const first = "step 1 at 1763838001.125 loss=1 learning_rate=0.1 samples_per_second=100 peak_bytes/cpu:0=1048576 peak_bytes/cpu:1=5"
	const second = "step 2 at 1763838002.125 loss=0.5 learning_rate=0.1 grad_norm=0.6666667 samples_per_second=100 " +
		"peak_bytes/cpu:0=2097152 peak_bytes/cpu:1=5"
	for i, want := range [][]string{
		{"brain.Event:2", first, second, "step 2 at 1763838002.500 accuracy=0.6666667"},
		{"brain.Event:2", "step 2 status 1", second},
	} {
		if diff := cmp.Diff(want, records(t, filepath.Join(dir, names[i].Name()))); diff != "" {
			t.Errorf("file %d: %s", i, diff)
		}
	}
}
