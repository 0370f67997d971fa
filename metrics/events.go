package metrics

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Events writes an event file that TensorBoard reads: scalars loss, learning_rate, grad_norm,
// samples_per_second, peak_bytes of each device, and accuracy or mse.
//
// A file is a sequence of records (tensorflow/core/lib/io/record_writer.h), each an Event
// (tensorflow/core/util/event.proto):
//
//	uint64 length | uint32 masked CRC-32C of length | Event | uint32 masked CRC-32C of Event
type Events struct {
	file    *os.File
	devices []string
	tests   lastTests
}

// OpenEvents makes a new event file in dir, and dir if needed. Its name begins with the time, as
// TensorBoard reads files in the order of their names. devices names the devices of Step.PeakBytes.
// The run has taken steps steps: TensorBoard drops later ones of older files, as they are taken again.
func OpenEvents(dir string, devices []string, steps int64) (*Events, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	now := time.Now()
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	path := filepath.Join(dir, fmt.Sprintf("events.out.tfevents.%010d.%09d.%s.%d", now.Unix(),
		now.Nanosecond(), host, os.Getpid()))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	e := &Events{file: f, devices: devices}
	err = e.write(event(Seconds(now), 0, fieldFileVersion, []byte("brain.Event:2")))
	if err == nil && steps > 0 {
		started := protowire.AppendVarint(protowire.AppendTag(nil, fieldStatus, protowire.VarintType),
			sessionStart)
		err = e.write(event(Seconds(now), steps+1, fieldSessionLog, started))
	}
	if err != nil {
		f.Close()
		os.Remove(path)
		return nil, err
	}
	return e, nil
}

// Field numbers of the messages.
const (
	fieldWallTime    = 1 // of Event
	fieldStep        = 2
	fieldFileVersion = 3
	fieldSummary     = 5
	fieldSessionLog  = 7
	fieldValue       = 1 // of Summary
	fieldTag         = 1 // of Summary.Value
	fieldSimple      = 2
	fieldStatus      = 1 // of SessionLog

	sessionStart = 1 // SessionLog.START: what is there of this step and later ones is void
)

// event is an Event with one message or string in it.
func event(seconds float64, step int64, field protowire.Number, content []byte) []byte {
	b := protowire.AppendFixed64(protowire.AppendTag(nil, fieldWallTime, protowire.Fixed64Type),
		math.Float64bits(seconds))
	if step != 0 { // which is the default
		b = protowire.AppendVarint(protowire.AppendTag(b, fieldStep, protowire.VarintType), uint64(step))
	}
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), content)
}

// scalar adds a named number to a Summary.
func scalar(summary []byte, tag string, x float64) []byte {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return summary
	}
	v := protowire.AppendString(protowire.AppendTag(nil, fieldTag, protowire.BytesType), tag)
	v = protowire.AppendFixed32(protowire.AppendTag(v, fieldSimple, protowire.Fixed32Type),
		math.Float32bits(float32(x)))
	return protowire.AppendBytes(protowire.AppendTag(summary, fieldValue, protowire.BytesType), v)
}

// Step writes the scalars of a step.
func (e *Events) Step(s Step) error {
	b := scalar(nil, "loss", s.Loss)
	b = scalar(b, "learning_rate", s.LR)
	if s.GradNorm != nil {
		b = scalar(b, "grad_norm", *s.GradNorm)
	}
	b = scalar(b, "samples_per_second", s.SamplesPerSecond)
	for i, peak := range s.PeakBytes {
		name := strconv.Itoa(i)
		if i < len(e.devices) {
			name = e.devices[i]
		}
		b = scalar(b, "peak_bytes/"+name, float64(peak))
	}
	return e.write(event(s.Time, s.Step, fieldSummary, b))
}

// Test writes how well the model does after a step, once on each of the two sets.
func (e *Events) Test(t Test) error {
	if !e.tests.isNew(t) {
		return nil
	}
	of, loss := "", "test_loss"
	if t.Validation {
		of, loss = "validation/", "validation/loss"
	}
	var b []byte
	if t.Accuracy != nil {
		b = scalar(b, of+"accuracy", *t.Accuracy)
	}
	if t.MSE != nil {
		b = scalar(b, of+"mse", *t.MSE)
	}
	if t.TestLoss != nil {
		b = scalar(b, loss, *t.TestLoss)
	}
	return e.write(event(t.Time, t.Step, fieldSummary, b))
}

// write writes a record, at once and in one piece.
func (e *Events) write(message []byte) error {
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

// masked is the CRC-32C of b, rotated and moved, as a CRC of bytes that hold CRCs is a weak one
// (tensorflow/core/lib/hash/crc32c.h).
func masked(b []byte) uint32 {
	sum := crc32.Checksum(b, castagnoli)
	return (sum>>15 | sum<<17) + 0xa282ead8
}

// Sync returns when all that was written would survive a loss of power.
func (e *Events) Sync() error { return e.file.Sync() }

// Close closes the file.
func (e *Events) Close() error { return e.file.Close() }
