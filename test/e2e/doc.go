// Package e2e tests the built binary: the router, the simulated fleet and the
// clients are processes of their own, joined by sockets and signals only.
//
// # Goal
//
// What a test inside one process cannot show: exit codes and what is printed,
// signals, ports that are free for the next process, file limits, a standard
// error that nobody reads, and a fleet whose workers die, hang, come back or
// slow down under load.
//
// # Non-goals
//
// Corners of a protocol or of a policy: the packages' own tests have them, with
// less machinery and in less time.
//
// # Form of a test
//
//	fleet := startSim(t, "--prefill", "1", "--decode", "1")
//	router := startRouter(t, fleet, "--prefill-queue-size", "1", …)
//	a := router.chat(t, `"stream":true`)
//	…
//
// Both processes end with the test. At its end every test also checks, unless it
// says otherwise, that the router ended with exit code 0, that all holds were
// released, that no engine was misused, and that nothing panicked or raced:
// see router.finish.
//
// TestChaos is another form: all faults, all sources of workers and clients at once, by a
// schedule drawn from a seed (chaos_test.go, "make chaos").
//
// SLUICE_E2E_FULL=1 runs longer loads and more combinations of faults.
// SLUICE_E2E_STACK=net runs all routers with --http-stack net.
package e2e
