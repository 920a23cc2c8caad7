// Package telemetry sets up what a process tells of itself: its log, with one
// access line for each request, and the registry of its metrics.
//
// # Goal
//
// Nobody who logs ever waits: lines go to a bounded buffer that one goroutine
// writes out, so that a terminal or a pipe that takes nothing stalls no request.
// What does not fit is dropped, counted in sluice_log_lines_dropped_total, and
// told in the log itself once it takes lines again.
//
// # Non-goals
//
// What is measured: each package defines its own metrics from the registerer it
// is handed. Prompts, keys and error bodies: there is no field for them.
//
// # Usage
//
//	log := telemetry.NewLog(telemetry.LogOptions{Out: os.Stderr, Level: slog.LevelInfo})
//	defer log.Close(time.Second)
//	reg := telemetry.NewRegistry()
//	reg.MustRegister(log)
//	log.Info("serving", "address", addr)
//	log.Access(&line)
package telemetry
