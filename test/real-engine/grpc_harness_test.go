//go:build realengine

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

// startGRPC starts a router in front of the engine by gRPC that runs whole requests.
func startGRPC(t testing.TB, args ...string) *router {
	t.Helper()
	return startRouter(t, append([]string{"--worker-urls", grpcOne.URL()}, args...)...)
}

// startGRPCPair starts a router in front of the pair by gRPC.
func startGRPCPair(t testing.TB, args ...string) *router {
	t.Helper()
	return startRouter(t, append([]string{"--pd-disaggregation", "--prefill", grpcPrefill.URL(), "none", "--decode", grpcDecode.URL()}, args...)...)
}

// busy is how many requests an engine has, running and waiting.
func busy(t testing.TB, e *Engine) (n int) {
	t.Helper()
	conn, err := e.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answer, err := vllmpb.NewVllmEngineClient(conn).GetLoads(ctx, &vllmpb.GetLoadsRequest{})
	if err != nil {
		t.Fatalf("%s: %v", e.Role, err)
	}
	for _, l := range answer.GetLoads() {
		n += int(l.GetNumRunningReqs() + l.GetNumWaitingReqs())
	}
	return n
}

// waitBusy waits until an engine has so many requests.
func waitBusy(t testing.TB, e *Engine, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s has %d requests", e.Role, want), func() string {
		if n := busy(t, e); n != want {
			return fmt.Sprint(n)
		}
		return ""
	})
}

// grpcProxy stands before an engine and changes its answers to Generate.
type grpcProxy struct {
	url string

	mu sync.Mutex
	// guarded by mu
	change func(*vllmpb.GenerateResponse) // nil: nothing is changed
	id     string                         // of the last request
}

// asked is the id of the last request.
func (p *grpcProxy) asked() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.id
}

func (p *grpcProxy) changes(f func(*vllmpb.GenerateResponse)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change = f
}

// handsOver changes what prefill hands over to decode.
func (p *grpcProxy) handsOver(change func(params string) string) {
	p.changes(func(m *vllmpb.GenerateResponse) {
		if c := m.GetComplete(); c.GetKvTransferParamsJson() != "" {
			c.KvTransferParamsJson = proto.String(change(c.GetKvTransferParamsJson()))
		}
	})
}

// startProxy starts one.
func startGRPCProxy(t testing.TB, e *Engine) *grpcProxy {
	t.Helper()
	to, err := e.Dial()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &grpcProxy{url: "grpc://" + l.Addr().String()}
	s := grpc.NewServer(grpc.ForceServerCodecV2(encoded{}), grpc.UnknownServiceHandler(func(_ any, from grpc.ServerStream) error {
		return p.pass(from, to)
	}))
	go func() { _ = s.Serve(l) }() // until it is stopped
	t.Cleanup(func() { s.Stop(); to.Close() })
	return p
}

// pass passes a call on.
func (p *grpcProxy) pass(from grpc.ServerStream, to *grpc.ClientConn) error {
	method, _ := grpc.MethodFromServerStream(from)
	ctx, cancel := context.WithCancel(from.Context())
	defer cancel()
	call, err := to.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method,
		grpc.ForceCodecV2(encoded{}), grpc.MaxCallRecvMsgSize(64<<20))
	if err != nil {
		return err
	}
	// Each method has one message from the client.
	var m []byte
	if err := from.RecvMsg(&m); err != nil {
		return err
	}
	if method == vllmpb.VllmEngine_Generate_FullMethodName {
		var asked vllmpb.GenerateRequest
		if err := proto.Unmarshal(m, &asked); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		p.mu.Lock()
		p.id = asked.GetRequestId()
		p.mu.Unlock()
	}
	if err := call.SendMsg(m); err != nil {
		return err
	}
	if err := call.CloseSend(); err != nil {
		return err
	}
	for {
		err := call.RecvMsg(&m)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		p.mu.Lock()
		change := p.change
		p.mu.Unlock()
		if method == vllmpb.VllmEngine_Generate_FullMethodName && change != nil {
			var answer vllmpb.GenerateResponse
			if err := proto.Unmarshal(m, &answer); err != nil {
				return status.Error(codes.Internal, err.Error())
			}
			change(&answer)
			if m, err = proto.Marshal(&answer); err != nil {
				return status.Error(codes.Internal, err.Error())
			}
		}
		if err := from.SendMsg(m); err != nil {
			return err
		}
	}
}

// encoded passes messages as they are on the wire.
type encoded struct{}

func (encoded) Name() string { return "proto" }

func (encoded) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (encoded) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
