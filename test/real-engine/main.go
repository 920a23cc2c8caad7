// Command real-engine starts and stops real vLLM engines on a machine without a
// GPU, for the tests beside it and for trying sluice by hand.
//
//	./test/real-engine/install.sh            once
//	go run ./test/real-engine start one      an engine that runs whole requests
//	go run ./test/real-engine start whole    two of them, the second with a small KV cache
//	go run ./test/real-engine start pd       a prefill and a decode engine over NIXL
//	go run ./test/real-engine start grpc-one, grpc-pd    the same by gRPC
//	go run ./test/real-engine start render   what turns requests into token ids
//	go run ./test/real-engine status
//	go run ./test/real-engine stop
//	make e2e-real                            the tests
//	make e2e-real-grpc                       those with engines by gRPC
//
// # Goal
//
// sluice against engines that nobody here wrote: what the simulator gets wrong
// shows here. The engines serve a tiny model of random weights (tinymodel.py),
// whose greedy answer depends on the whole prompt and on the KV cache, so that
// equal texts mean that the right cache was moved.
//
// # Non-goals
//
// Speed: two cores run four engines, the router and the tests. Whatever the
// simulator shows as well is tested there.
//
// # Folders and ports
//
// Everything is kept under REAL_ENGINE_HOME (default: sluice-real-engine in the
// user's cache folder): venv, model, and in run the logs and process ids. The
// engines listen on 127.0.0.1, at ports from REAL_ENGINE_PORT (28100) up.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const usage = `usage: real-engine start one|two|whole|prefill|decode|pd|all|grpc-one|grpc-pd|render
       real-engine status
       real-engine stop
`

// startLimit is how long an engine may take to start. It takes 40 s of two idle
// cores.
const startLimit = 10 * time.Minute

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := 0
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	cancel()
	os.Exit(code)
}

func run(ctx context.Context, args []string) error {
	home, err := FindHome()
	if err != nil {
		return err
	}
	sets := map[string][]Role{
		"one": {One}, "two": {Two}, "prefill": {Prefill}, "decode": {Decode},
		"whole": {One, Two}, "pd": {Prefill, Decode}, "all": {One, Two, Prefill, Decode},
		"grpc-one": {GRPCOne}, "grpc-pd": {GRPCPrefill, GRPCDecode}, "render": {Render},
	}
	switch {
	case len(args) == 2 && args[0] == "start" && sets[args[1]] != nil:
		ctx, cancel := context.WithTimeout(ctx, startLimit)
		defer cancel()
		engines, err := Ensure(ctx, home, sets[args[1]]...)
		if n := len(engines); err == nil && n > 1 && args[1] != "whole" {
			warm := Warm
			if engines[0].Role.GRPC() {
				warm = WarmGRPC
			}
			err = warm(ctx, engines[n-2], engines[n-1])
		}
		for _, e := range engines {
			fmt.Printf("%s is ready at %s\n", e.Role, e.URL())
		}
		return err
	case len(args) == 1 && args[0] == "status":
		for _, role := range Roles {
			switch e, err := home.Find(role); {
			case err != nil:
				return err
			case e == nil:
				fmt.Printf("%s does not run\n", role)
			default:
				fmt.Printf("%s runs at %s (process %d)\n", role, e.URL(), e.pid)
			}
		}
		return nil
	case len(args) == 1 && args[0] == "stop":
		for _, role := range Roles {
			e, err := home.Find(role)
			if err != nil {
				return err
			}
			if e != nil {
				e.Stop()
				fmt.Printf("%s is stopped\n", role)
			}
		}
		return nil
	}
	return fmt.Errorf("%s", usage)
}

// Ensure makes sure that engines of these roles run: those that do are taken as
// they are, the others are started side by side. On an error those that it started
// are stopped.
func Ensure(ctx context.Context, home Home, roles ...Role) (engines []*Engine, err error) {
	var fresh []*Engine
	defer func() {
		if err != nil {
			for _, e := range fresh {
				e.Stop()
			}
			engines = nil
		}
	}()
	for _, role := range roles {
		e, err := home.Find(role)
		if err != nil {
			return nil, err
		}
		if e == nil {
			spec, err := ports(role)
			if err != nil {
				return nil, err
			}
			if e, err = home.Start(spec); err != nil {
				return nil, err
			}
			fresh = append(fresh, e)
		}
		engines = append(engines, e)
	}
	for _, e := range engines {
		if err := e.WaitReady(ctx); err != nil {
			return nil, err
		}
	}
	return engines, nil
}
