package node

import "google.golang.org/grpc/mem"

// message is one message in its encoded form. The codec takes and gives nothing else.
type message struct {
	data mem.BufferSlice
	flat []byte // of data that came in several pieces
}

// rawCodec passes messages through as they are.
type rawCodec struct{}

// Name implements encoding.CodecV2. It is part of the content type.
func (rawCodec) Name() string { return "sluice" }

// Marshal implements encoding.CodecV2. grpc-go frees what it gets.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	m := v.(*message)
	m.data.Ref()
	return m.data, nil
}

// Unmarshal implements encoding.CodecV2.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m := v.(*message)
	data.Ref()
	m.data = data
	return nil
}

// bytes are the message as one piece, valid until free.
func (m *message) bytes() []byte {
	switch len(m.data) {
	case 0:
		return nil
	case 1:
		return m.data[0].ReadOnlyData()
	}
	size := m.data.Len()
	if cap(m.flat) < size || cap(m.flat) > keptBuffer {
		m.flat = make([]byte, size)
	}
	m.flat = m.flat[:size]
	m.data.CopyTo(m.flat)
	return m.flat
}

func (m *message) free() {
	if m.data != nil {
		m.data.Free()
		m.data = nil
	}
}
