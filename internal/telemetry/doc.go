// Package telemetry sets up the log of a process, with one access line for each
// request, and the registry of its metrics.
//
// # Goal
//
// Logging never blocks: lines go to a bounded buffer that one goroutine writes out,
// so that a terminal or a pipe that is not read stalls no request. Lines that do not
// fit are dropped, counted in sluice_log_lines_dropped_total, and reported in the log
// itself once it accepts lines again.
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
