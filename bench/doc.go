// Command bench measures a router end to end, against simulated engines, each
// in a process of its own.
//
// # Goals
//
// It answers what a router costs: CPU time per request of the router's process
// alone, latency it adds over talking to the engines directly, memory per idle
// stream and at rest, CPU while nothing happens; each with few workers and with
// many, with small prompts and with large ones. With -peer-smg the public
// router smg runs on the same workers, and every figure has that router's
// beside it. The routers take turns within each measurement (ours, peer,
// direct, ours, peer, direct …), so that what else the machine does meets all
// of them.
//
// # Non-goals
//
// It asserts no speed: on a shared machine absolute figures mean little and
// only ratios travel. It does assert answers: each must be whole, with the
// right number of events and tokens, and the engines must have seen no breach
// of their contract. The exit code is 1 if one of ours was wrong.
//
// # Usage
//
//	go run ./bench                                  all scenarios, ours and direct
//	go run ./bench -peer-smg auto -out FILE         beside smg, table to FILE
//	go run ./bench -haproxy auto -scenario agg      beside HAProxy, which passes whole requests on
//	go run ./bench -quick -scenario 'pd-small/2$'   does it work at all
//	go run ./bench -cluster                         one router and three, each alone and as one gate
//	go run ./bench -list                            names of scenarios
//	go run ./bench -perf                            and where ours spends its CPU (needs perf)
//
// # Life of a run
//
// Scenarios that need the same fleet and the same router options form a setup.
// For each setup the simulator is started (sluice sim --load), then the routers
// that are compared, until each reports all workers healthy. A scenario then
// lets this process's client load each target in turn, for a warm-up and a
// window, several rounds. Of the rounds the median counts; ratios are taken
// within a round first. Scenarios about memory start fresh routers.
//
// The load is a closed loop: a number of clients, each with one connection,
// each sending its next request when the last is answered. "Direct" sends what
// a router would send: in disaggregated mode both legs, with a room of their
// own, over two connections.
package main
