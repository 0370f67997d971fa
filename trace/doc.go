// Package trace writes a [schedule.Timeline], simulated or recorded, as a Chrome trace-event file,
// which https://ui.perfetto.dev and chrome://tracing open: a row per worker, a slice per action,
// arrows that follow values between stages, and a curve of the bytes live on each device where
// the timeline has them.
//
// The format is described in "Trace Event Format" (Google, 2016).
package trace
