from collections.abc import Iterable
from typing import Literal
from kourou.proxy.pb.wire import RepeatedMessage, RepeatedScalar, WireMessage

class ServerReflectionRequest(WireMessage):
    host: str
    file_by_filename: str
    file_containing_symbol: str
    @property
    def file_containing_extension(self) -> ExtensionRequest: ...
    all_extension_numbers_of_type: str
    list_services: str
    def __init__(
        self,
        *,
        host: str | None = ...,
        file_by_filename: str | None = ...,
        file_containing_symbol: str | None = ...,
        file_containing_extension: ExtensionRequest | None = ...,
        all_extension_numbers_of_type: str | None = ...,
        list_services: str | None = ...,
    ) -> None: ...
    def HasField(self, field_name: Literal["file_by_filename", "file_containing_symbol", "file_containing_extension", "all_extension_numbers_of_type", "list_services"], /) -> bool: ...
    def WhichOneof(self, oneof: Literal["message_request"], /) -> Literal["file_by_filename", "file_containing_symbol", "file_containing_extension", "all_extension_numbers_of_type", "list_services"] | None: ...

class ExtensionRequest(WireMessage):
    containing_type: str
    extension_number: int
    def __init__(
        self,
        *,
        containing_type: str | None = ...,
        extension_number: int | None = ...,
    ) -> None: ...

class ServerReflectionResponse(WireMessage):
    valid_host: str
    @property
    def original_request(self) -> ServerReflectionRequest: ...
    @property
    def file_descriptor_response(self) -> FileDescriptorResponse: ...
    @property
    def all_extension_numbers_response(self) -> ExtensionNumberResponse: ...
    @property
    def list_services_response(self) -> ListServiceResponse: ...
    @property
    def error_response(self) -> ErrorResponse: ...
    def __init__(
        self,
        *,
        valid_host: str | None = ...,
        original_request: ServerReflectionRequest | None = ...,
        file_descriptor_response: FileDescriptorResponse | None = ...,
        all_extension_numbers_response: ExtensionNumberResponse | None = ...,
        list_services_response: ListServiceResponse | None = ...,
        error_response: ErrorResponse | None = ...,
    ) -> None: ...
    def HasField(self, field_name: Literal["original_request", "file_descriptor_response", "all_extension_numbers_response", "list_services_response", "error_response"], /) -> bool: ...
    def WhichOneof(self, oneof: Literal["message_response"], /) -> Literal["file_descriptor_response", "all_extension_numbers_response", "list_services_response", "error_response"] | None: ...

class FileDescriptorResponse(WireMessage):
    @property
    def file_descriptor_proto(self) -> RepeatedScalar[bytes]: ...
    def __init__(
        self,
        *,
        file_descriptor_proto: Iterable[bytes] | None = ...,
    ) -> None: ...

class ExtensionNumberResponse(WireMessage):
    base_type_name: str
    @property
    def extension_number(self) -> RepeatedScalar[int]: ...
    def __init__(
        self,
        *,
        base_type_name: str | None = ...,
        extension_number: Iterable[int] | None = ...,
    ) -> None: ...

class ListServiceResponse(WireMessage):
    @property
    def service(self) -> RepeatedMessage[ServiceResponse]: ...
    def __init__(
        self,
        *,
        service: Iterable[ServiceResponse] | None = ...,
    ) -> None: ...

class ServiceResponse(WireMessage):
    name: str
    def __init__(
        self,
        *,
        name: str | None = ...,
    ) -> None: ...

class ErrorResponse(WireMessage):
    error_code: int
    error_message: str
    def __init__(
        self,
        *,
        error_code: int | None = ...,
        error_message: str | None = ...,
    ) -> None: ...
