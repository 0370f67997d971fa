package metrics

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Events writes an event file for TensorBoard, with the scalars loss, learning_rate, grad_norm,
// samples_per_second, peak_bytes of each device, and accuracy or mse.
//
// A file is a sequence of records (tensorflow/core/lib/io/record_writer.h), each with an Event
// (tensorflow/core/util/event.proto):
//
//	uint64 length | uint32 masked CRC-32C of length | Event | uint32 masked CRC-32C of Event
type Events struct {
	file    *os.File
	devices []string
}

// OpenEvents makes a new event file in dir, and dir if needed. Its name begins with the time, as
// TensorBoard reads files in the order of their names. devices names the devices of Step.PeakBytes.
// steps is the number of steps that the run has taken. TensorBoard then drops later steps that
// older files have.
func OpenEvents(dir string, devices []string, steps int64) (*Events, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	now := time.Now()
	host, _ := os.Hostname()
	path := filepath.Join(dir, fmt.Sprintf("events.out.tfevents.%010d.%09d.%s.%d", now.Unix(),
		now.Nanosecond(), host, os.Getpid()))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	e := &Events{f, devices}
	err = e.write(Seconds(now), 0, fileVersion, []byte("brain.Event:2"))
	if err == nil && steps > 0 { // status START voids older files from this step on
		err = e.write(Seconds(now), steps+1, sessionLog, field(nil, 1, int64(1)))
	}
	if err != nil {
		f.Close()
		os.Remove(path)
		return nil, err
	}
	return e, nil
}

// Fields of an Event.
const (
	fileVersion = 3
	summary     = 5
	sessionLog  = 7
)

// scalar appends a named number to a Summary, unless it is nil or not finite.
func scalar(b []byte, tag string, x *float64) []byte {
	if x == nil || math.IsNaN(*x) || math.IsInf(*x, 0) {
		return b
	}
	return field(b, 1, field(field(nil, 1, []byte(tag)), 2, float32(*x)))
}

// field appends a field of a message.
func field(b []byte, number protowire.Number, value any) []byte {
	switch v := value.(type) {
	case float64:
		return protowire.AppendFixed64(protowire.AppendTag(b, number, protowire.Fixed64Type),
			math.Float64bits(v))
	case float32:
		return protowire.AppendFixed32(protowire.AppendTag(b, number, protowire.Fixed32Type),
			math.Float32bits(v))
	case int64:
		return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), uint64(v))
	}
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value.([]byte))
}

func (e *Events) Step(s Step) error {
	b := scalar(nil, "loss", &s.Loss)
	b = scalar(b, "learning_rate", &s.LR)
	b = scalar(b, "grad_norm", s.GradNorm)
	b = scalar(b, "samples_per_second", &s.SamplesPerSecond)
	for i, peak := range s.PeakBytes {
		b = scalar(b, "peak_bytes/"+e.devices[i], new(float64(peak)))
	}
	return e.write(s.Time, s.Step, summary, b)
}

func (e *Events) Test(t Test) error {
	prefix, loss := "", "test_loss"
	if t.Validation {
		prefix, loss = "validation/", "validation/loss"
	}
	b := scalar(scalar(nil, prefix+"accuracy", t.Accuracy), prefix+"mse", t.MSE)
	b = scalar(b, loss, t.TestLoss)
	return e.write(t.Time, t.Step, summary, b)
}

// write writes an Event with one message or string as one record, in a single write.
func (e *Events) write(seconds float64, step int64, number protowire.Number, content []byte) error {
	message := field(nil, 1, seconds) // wall_time
	if step != 0 {                    // 0 is the default
		message = field(message, 2, step)
	}
	message = field(message, number, content)
	record := binary.LittleEndian.AppendUint64(nil, uint64(len(message)))
	record = binary.LittleEndian.AppendUint32(record, masked(record))
	record = append(record, message...)
	record = binary.LittleEndian.AppendUint32(record, masked(message))
	if _, err := e.file.Write(record); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// masked is the masked CRC-32C of b (tensorflow/core/lib/hash/crc32c.h).
func masked(b []byte) uint32 {
	sum := crc32.Checksum(b, castagnoli)
	return (sum>>15 | sum<<17) + 0xa282ead8
}

func (e *Events) Sync() error  { return e.file.Sync() }
func (e *Events) Close() error { return e.file.Close() }
